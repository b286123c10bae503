"""Computing sequences: a queue of jobs, steps, slots, graphs."""
