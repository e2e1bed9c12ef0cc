"""Arguments of launches: numbers that are packed, memories that are checked and bound."""
