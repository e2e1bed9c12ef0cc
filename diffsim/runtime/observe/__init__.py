"""What looks at launches: how long they take, and where a NaN comes from."""
