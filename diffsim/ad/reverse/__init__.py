"""The backward pass over a record: seeds, adjoints of entries, retained gradients."""
