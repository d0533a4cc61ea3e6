"""Tests on a real CUDA device: `pytest -m gpu` where torch sees one. They are skipped elsewhere."""
