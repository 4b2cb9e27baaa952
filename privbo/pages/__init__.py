"""Pages people read: the report of a run."""
