"""The op table, and what its rows are written with: formulas, type inference of tensors, the gamma function.

Read `table.py`: one row an op, and nothing about an op anywhere else.
"""

from diffsim.ir.ops.table import *  # noqa: F403 - the names are the table's rows
