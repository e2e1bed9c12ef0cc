"""Recordings that are made again: what the next one may use of the last one."""
