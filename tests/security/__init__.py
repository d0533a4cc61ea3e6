"""Attacks on a site, each of which must bounce; docs/security.md names them."""
