"""What a training and a minimisation have in common: the program as a function, progress, Ctrl-C, files."""
