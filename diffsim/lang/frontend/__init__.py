"""Syntax-directed translation of a Python function to IR: one function for each kind of syntax node.

Read `translate.py` (the entry), then `context.py` (what the translator knows), then `statements.py`. The
modules call one another as the syntax nests: they are one recursion in several files.
"""
