"""Jacobians, and gradients compared with differences."""
