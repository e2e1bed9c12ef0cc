"""Results that an adjoint keeps in place of computing them again."""
