"""StarCoder: the architecture `starcoder2`."""
