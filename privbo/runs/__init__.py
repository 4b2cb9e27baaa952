"""The data flow of one run: settings, opening, loop, record, result."""
