"""Documents as tokens on disk: prepared once, then drawn as sequences by seed and step. No torch."""
