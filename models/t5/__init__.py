"""T5, and its encoder alone."""
