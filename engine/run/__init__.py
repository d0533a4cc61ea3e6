"""The processes of a run: launcher, hosts and ranks, which put its parts together."""
