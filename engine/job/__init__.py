"""What is asked of a run, and what it says: documents, settings, launch, events, predictions. No torch."""
