"""What `auto` searches with: a scenario as a job shop, kernels that build and improve its schedules."""
