"""Implicit differentiation: solves whose adjoint is another solve (docs/adr/0043)."""
