"""Replicas of models on Ray, behind one server: Ray Serve starts them, looks after them and chooses
the one that answers a request."""

from .deployment import Plan, deployed

__all__ = ["Plan", "deployed"]
