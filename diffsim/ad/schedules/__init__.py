"""Checkpoint schedules: which states and tapes a rollout holds, and when. No fields, no kernels."""
