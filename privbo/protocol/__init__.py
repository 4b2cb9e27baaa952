"""Messages between servers and clients: messages, problem, space, errors, files."""
