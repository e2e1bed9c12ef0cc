"""Observers of launches: how long they take, and where a NaN comes from."""
