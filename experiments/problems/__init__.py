"""Problems that experiments optimise: clients, functions and data, made from a seed."""
