"""Compiled inner loops of the prefill controller: the store of free gaps, and the search for a place."""
