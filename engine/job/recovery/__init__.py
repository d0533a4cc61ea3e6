"""The step and the layout with which a run continues after a failure."""
