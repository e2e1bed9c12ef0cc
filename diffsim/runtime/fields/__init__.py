"""Fields, as Python sees them. Read `field.py` first."""
