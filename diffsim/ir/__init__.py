"""The intermediate representation: what the front end builds, passes rewrite and back ends lower.

Read `nodes.py` first (the grammar on one page), then `ops/table.py` (the op table, one row an op). `op.py`
says what a row is made of, `builder.py` makes typed IR, `traversal.py` walks and copies it, `verifier.py`
checks it.
"""
