"""Granite: the architectures `granite` (Granite 3, dense), `granitemoe` (with experts) and
`granitehybrid` (Granite 4)."""
