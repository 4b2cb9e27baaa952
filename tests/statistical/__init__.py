"""Tests that measure: each names its sample size, its false-alarm rate and the fault it catches."""
