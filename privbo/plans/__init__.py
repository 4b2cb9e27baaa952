"""Privacy as asked for, and its price before any data is touched."""
