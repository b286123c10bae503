"""Runners: processes that hold one model each, and their other ends in the server."""
