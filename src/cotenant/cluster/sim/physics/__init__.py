"""Physical model of programs that share a GPU."""
