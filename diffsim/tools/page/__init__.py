"""Pages that play films: panels packed as text, and the script that shows them."""
