"""Certified numerical accounting: upper and lower ends of epsilon and delta."""
