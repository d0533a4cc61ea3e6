"""Which device computes which stage of which pipeline, where links differ (DT-FM).

Devices are split into P data-parallel groups of equal size, one per pipeline stage. Given the groups, the
rest is solved exactly: neighbouring groups are matched so that the slowest pair is as fast as can be, and
the groups are ordered along the shortest open path. The search is over the groups alone.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments" (2022), §2–3.
"""
