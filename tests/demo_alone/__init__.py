"""Tests that start, load and kill demos of their own; the shared one of tests/demo would slow them down."""
