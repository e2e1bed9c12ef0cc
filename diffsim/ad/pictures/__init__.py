"""Pictures of what a tape has recorded."""
