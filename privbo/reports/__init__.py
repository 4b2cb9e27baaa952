"""Pages, tables and pictures of typed results."""
