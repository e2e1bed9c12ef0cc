"""Functions of the language that are no ops: intrinsics, decompositions, and those of shaders."""
