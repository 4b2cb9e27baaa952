"""Short scripts, each under two minutes: ``python -m experiments.examples.NAME``."""
