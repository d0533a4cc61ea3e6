"""Replays of requests: what a trace of prompts would sell of the bubbles of a run, a plan or a schedule."""
