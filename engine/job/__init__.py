"""Requests to a run and reports of it: documents, settings, launch, events, predictions. No torch."""
