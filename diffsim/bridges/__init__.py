"""Functions of fields as functions of other libraries' arrays."""
