"""Optimisation by few sites whose released evaluations are each other's prior."""
