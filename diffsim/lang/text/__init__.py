"""Where the text of a function is, and whether it is that of its code. Read `compiled_source.py` first."""
