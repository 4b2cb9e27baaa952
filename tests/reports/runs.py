"""Small finished runs for the tests of pages, made once per test session."""

from pathlib import Path

import numpy as np

import privbo as pb
from privbo.protocol.messages import Algorithm
from tests.conformance.cases import bumps, problem

EVIL = "<script>alert(1)</script>"


def small_run(home: Path, algorithm: Algorithm | None = None, **settings) -> pb.Record:
    """A private run of a few rounds on the conformance problem."""
    chosen = algorithm or pb.DPFTSDE(n_features=8, n_regions=2)
    asked = {"privacy": pb.Privacy(epsilon=2.0, sample_rate=0.5), "rounds": 3, "name": "small"} | settings
    return pb.run(problem(), chosen, directory=home, **asked)


def evil_run(home: Path) -> pb.Record:
    """A run whose every name tries to run a script."""
    hostile = pb.Problem(
        space={f"x{EVIL}": pb.Real(0, 1), "y": pb.Categorical((EVIL, "b"))},
        batch_objective=lambda clients, units: bumps(clients, np.asarray(units)),
        n_clients=7,
        name=EVIL,
        provenance=f"</script>{EVIL}",
    )
    asked = {"privacy": pb.Privacy(noise_multiplier=2.0), "rounds": 2, "directory": home}
    return pb.run(hostile, pb.DPFTSDE(n_features=8), **asked)
