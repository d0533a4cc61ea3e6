"""What computes: layers, stages, devices, tensor parallelism."""
