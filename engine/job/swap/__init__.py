"""What a job of strategy swap says, and its plan."""
