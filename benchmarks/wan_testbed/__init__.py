"""A WAN on one machine that the kernel's own TCP sees: two network namespaces and a TUN device in each."""
