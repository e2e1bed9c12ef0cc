"""Operators: what they compute at compile time, and the statements that they become."""
