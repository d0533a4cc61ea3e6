"""A WAN on one machine that the kernel's own TCP sees: a namespace and a TUN device per data centre."""

import os

# Rendezvous would say for every rank that its address has no name; torch reads this when it is imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# As the runtime has it for its ranks.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
