"""The papers' experiments and ours: configurations and thin drivers."""
