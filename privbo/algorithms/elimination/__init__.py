"""Elimination over a hierarchical partition of the domain: Fed-PNE, PF-PNE, parallel X-armed bandits."""
