"""Prefill of other people's prompts in the bubbles of training, which goes first."""
