"""Running on the CPU: executables, and command lists that one native call runs."""
