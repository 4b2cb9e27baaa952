"""The typed road of one run: settings, opening, loop, record, result."""
