"""Where checkpoints lie, and what their manifests say."""
