"""Federated Thompson sampling with random Fourier features: DP-FTS-DE."""
