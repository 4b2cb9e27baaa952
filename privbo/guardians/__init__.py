"""Guardians: no single party has to be trusted with a vector."""
