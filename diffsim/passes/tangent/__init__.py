"""Forward mode: from a kernel to one that computes tangents along with it."""
