"""Threads, blocks and warps: what any GPU target shares. Read `thread.py` first."""
