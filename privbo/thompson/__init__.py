"""Federated Thompson sampling with distributed exploration (DP-FTS-DE) and its special cases."""
