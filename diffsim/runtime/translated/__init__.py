"""Translations that are kept on disk, and loaded while Python gives the same answers."""
