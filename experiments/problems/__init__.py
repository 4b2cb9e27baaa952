"""What is optimised: clients, functions and data, each a function or a class that gives a problem."""
