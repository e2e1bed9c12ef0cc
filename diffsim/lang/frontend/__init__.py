"""Syntax-directed translation of a Python function to IR: one function for each kind of syntax node.

Read `translate.py` (the entry point), then `context.py` (the state), then `statements.py`. The modules are
one recursive translator in several files: they call one another as the syntax nests.
"""
