"""Tests that load, kill and cut off one demo, one after the other: each leaves it as well as it was."""
