"""Factories of models, one file each: what libraries name, or a module of your own, with taps."""
