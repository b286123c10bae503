"""Builds of ggml on this machine: made from source, kept in the user's data folder, one chosen.

This imports neither ggml nor the binding, so that it works where these are broken.
"""
