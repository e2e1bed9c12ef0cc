"""Calls that the front end expands: inlined funcs, custom derivatives, inline LLVM, print, structs."""
