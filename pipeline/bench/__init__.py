"""Benches: how fast a pass is beside what the machine could do at best, measured in one run."""
