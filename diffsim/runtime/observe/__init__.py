"""What looks at launches: where a NaN comes from."""
