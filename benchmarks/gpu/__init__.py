"""All that Meridian claims of GPUs, measured in one go: ``python -m benchmarks.gpu`` (``make gpu``)."""
