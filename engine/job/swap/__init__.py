"""A job of strategy swap, and its plan."""
