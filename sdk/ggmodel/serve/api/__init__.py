"""The APIs that other programs speak: each a list of routes, and a shape of its errors."""
