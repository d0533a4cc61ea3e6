"""What a job says of prefill."""
