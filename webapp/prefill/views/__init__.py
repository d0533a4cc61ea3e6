"""Pages of prefill, by what they are about."""
