"""Ways to play one arm at one seed."""
