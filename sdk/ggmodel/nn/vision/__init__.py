"""Shared parts of vision towers; `ggmodel.nn` has their names."""
