"""Placement of devices in pipelines and stages over unequal links (DT-FM).

Devices are split into P data-parallel groups of equal size, one per pipeline stage. Given the groups, the
rest is solved exactly. Adjacent groups are matched so that the slowest pair is as fast as possible, and the
groups are ordered along the shortest open path. The search is over the groups alone.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments" (2022), §2–3.
"""
