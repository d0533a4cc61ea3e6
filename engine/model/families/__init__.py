"""Families of Hugging Face models: each file reads the config.json of one; counts are transformers' own."""
