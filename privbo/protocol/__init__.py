"""What servers and clients say to each other: messages, problem, space, errors, files."""
