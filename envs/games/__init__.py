"""Two-player board games: rule tables and pure functions, and one thin environment over them."""
