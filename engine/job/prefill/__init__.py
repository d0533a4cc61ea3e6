"""Prefill in a job's document."""
