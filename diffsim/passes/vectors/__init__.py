"""Lanes that run together as vectors: which tasks, and how their accesses are grouped."""
