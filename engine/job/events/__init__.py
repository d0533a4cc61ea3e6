"""Typed events: what ranks, hosts, prefill coordinators and node agents report."""
