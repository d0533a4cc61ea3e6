"""Compiled loops over the ops of a trace and the bytes of its file."""
