"""One layout of a training run, given whole: its iteration time and memory from measured layers."""
