"""Searches for one setting that all clients use: the server names common points, clients score them or vote."""
