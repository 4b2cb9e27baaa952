"""Small finished runs for the tests of pages, made once per test session."""

import numpy as np

import privbo as pb
from tests.builders import play, problem as named
from tests.conformance.cases import bumps, problem

EVIL = "<script>alert(1)</script>"


def small_run(home, algorithm=None, **settings) -> pb.Record:
    """A private run of a few rounds on the conformance problem."""
    chosen = algorithm or pb.DPFTSDE(n_features=8, n_regions=2)
    asked = {"privacy": pb.Privacy(epsilon=2.0, sample_rate=0.5), "rounds": 3, "name": "small"} | settings
    return pb.run(problem(), chosen, directory=home, **asked)


def evil_run(home, evil: str = EVIL, name: str = EVIL) -> pb.Record:
    """A run whose every name tries to run a script, or does something else; only its own may be told apart."""
    hostile = {"space": {f"x{evil}": pb.Real(0, 1), "y": pb.Categorical((evil, "b"))}, "provenance": f"</script>{evil}"}
    problem = named(7, batch_objective=lambda clients, units: bumps(clients, np.asarray(units)), name=name, **hostile)
    return play(problem, privacy=pb.Privacy(noise_multiplier=2.0), rounds=2, directory=home)
