"""From where a run goes on after a failure, and in which layout."""
