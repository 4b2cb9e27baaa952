"""Certified lower ends of epsilon and delta for every event, by tests; numpy and the standard library alone.

Any set A of outputs is a test: delta(epsilon) >= P(A) - exp(epsilon) Q(A), for the laws P and Q of two neighbours.
"""
