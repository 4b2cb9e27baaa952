"""What is asked of privacy and what it costs, before any data is touched."""
