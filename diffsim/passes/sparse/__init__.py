"""Sparse trees: what activates their cells, and loops over those that are active (docs/adr/0057)."""
