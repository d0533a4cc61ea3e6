"""Messages about work between processes: errors, the proof of the secret, connections. No torch."""
