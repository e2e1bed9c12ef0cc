"""The contents of a tape: its entries, saved copies, snapshots, and their picture."""
