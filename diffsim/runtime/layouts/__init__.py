"""Layout trees: where fields lie, dense and sparse."""
