"""One module for each kind of event: its fields, what dominates it, and everything else that is asked of it."""
