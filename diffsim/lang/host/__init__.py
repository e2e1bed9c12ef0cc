"""The Python side of the language: source and spans, annotations, captured values, `@ds.func`.

Nothing here knows of the translation. Read `source.py` first.
"""
