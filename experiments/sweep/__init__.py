"""`rlgates sweep`: the runs of a study, on this machine or a cluster, and their tables."""
