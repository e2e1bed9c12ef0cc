"""Memory of fields: where elements lie, and when each part was last written."""
