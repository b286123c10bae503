"""`ggmodel serve`: models behind the HTTP APIs that other programs speak.

The server holds no ggml: each model is in a runner, a process of its own.
"""
