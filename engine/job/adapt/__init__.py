"""Re-planning: the measured times, whether they differ from the plan, and the new plan."""
