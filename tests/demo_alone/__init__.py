"""Tests that start, load and kill demos of their own; beside the shared one of tests/demo they would be slow."""
