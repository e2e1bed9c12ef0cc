"""The intermediate representation: types, nodes, the op table, building, printing, verifying."""
