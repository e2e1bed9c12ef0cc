"""What a tape holds: its entries, saved copies, snapshots, and their picture."""
