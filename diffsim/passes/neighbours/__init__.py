"""Neighbours: what lanes get from elements around their own, and give to them."""
