"""Parts that training and minimisation have in common: the program as a function, progress, Ctrl-C, files."""
