"""Guardians: nobody has to be trusted with a vector."""
