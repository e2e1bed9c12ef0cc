"""Running a recorded tape again as a native program."""
