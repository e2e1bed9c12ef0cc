"""Checks of a record before its backward pass: a gradient is right, or it is refused."""
