"""The algorithms: settings, server and clients of each."""
