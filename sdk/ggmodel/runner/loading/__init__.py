"""From a path to a model in memory: sources, devices, tensors, reserved graphs."""
