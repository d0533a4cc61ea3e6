"""The search of `auto`: a scenario as a job-shop problem, and kernels that build and improve schedules."""
