"""Locations of checkpoints, and their manifests."""
