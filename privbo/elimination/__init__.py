"""Bandits over a partition of the search space: Fed-PNE, PF-PNE, parallel X-armed, and tree baselines."""
