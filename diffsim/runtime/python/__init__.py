"""Running in Python (`arch=ds.python`), for debuggers and for looking at each step."""
