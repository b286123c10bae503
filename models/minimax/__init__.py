"""MiniMax: the architecture `minimax-m2`."""
