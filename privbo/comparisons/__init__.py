"""Sweeps and comparisons of settings."""
