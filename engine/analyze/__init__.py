"""Traces that others measured: what they say of a run, and what would have been faster."""
