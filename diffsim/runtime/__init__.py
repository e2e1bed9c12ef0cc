"""From IR to a running kernel: options, fields, compiling, launching."""
