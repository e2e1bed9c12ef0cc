"""The program `diffsim`: examples, a look at this machine, the cache."""
