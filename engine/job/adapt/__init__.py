"""Re-planning: what was measured, whether it differs, and the plan made from it."""
