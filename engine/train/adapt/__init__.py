"""Re-planning of a run: compares measured with planned times, and changes the schedule if they differ.

Every rank reports what its ops and transfers took (`measured`); the first rank judges whether a deviation
lasts (`judge`), re-plans with what was measured (`replan`), and all ranks go over to the new schedule at
the same iteration boundary (`follow`).
"""
