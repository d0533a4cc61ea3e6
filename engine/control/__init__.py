"""How processes talk about work: errors, the proof of the secret, the lines between them. No torch."""
