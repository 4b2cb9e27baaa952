"""The clients of the whole-run audit: six clinics, of which number 2 is another in every world."""

import os
import sys
import time
import warnings
from collections import Counter

import numpy as np

import privbo as pb
from privbo.testing import bumps

N_CLIENTS = 6
WORLD = "PRIVBO_TEST_WORLD"
OTHER = 2
_calls: Counter[int] = Counter()


class StoppedError(BaseException):
    """As a cancellation: no Exception."""


def forget() -> None:
    """Begin a world: no call was made yet."""
    _calls.clear()


def _absent(honest: float, call: int) -> float:
    raise ConnectionError("clinic 2 is closed")


def talk(honest: float) -> None:
    """What an objective may say on its own machine."""
    print("clinic 2 prints", honest)
    sys.stderr.write("clinic 2 complains\n")
    warnings.warn("clinic 2 warns", stacklevel=1)


def _hostile(honest: float, call: int) -> float:
    talk(honest)
    bad = (1.01, -1.7e308, 1.7e308, float("nan"), 5e-324, "text", None, 1j)
    match call % 10:
        case 8:
            raise SystemExit(7)
        case 9:
            raise StoppedError
        case turn:
            return bad[turn]  # type: ignore[return-value]  # hostile on purpose


def _slow(honest: float, call: int) -> float:
    time.sleep(0.003)
    return honest


def _one_failure(honest: float, call: int) -> float:
    if call == 1:
        raise ValueError("one pull failed")
    return honest


WORLDS = {
    "changed": lambda honest, call: 1.0 - honest if call % 2 else 0.0,
    "absent": _absent,
    "hostile": _hostile,
    "slow": _slow,
    "one reward": lambda honest, call: 1.0 - honest if call == 1 else honest,
    "one failure": _one_failure,
    "no number": lambda honest, call: float("nan"),
}


def score(client: int, params: dict) -> float:
    honest = float(bumps(np.array([client]), np.array([[float(params["x"]), 0.5]]))[0])
    world = WORLDS.get(os.environ.get(WORLD, ""))
    if client != OTHER or world is None:
        return honest
    _calls[client] += 1
    return world(honest, _calls[client] - 1)


N_RECORDS = 30


def scores(client: int, params: dict) -> list[float]:
    """Scores of a clinic's records, the first of which is another one in every world."""
    honest = float(bumps(np.array([client]), np.array([[float(params["x"]), 0.5]]))[0])
    return [score(client, params)] + [honest * (1.0 - record / N_RECORDS) for record in range(1, N_RECORDS)]


def problem() -> pb.Problem:
    """The same as a factory; everything about it is public but what ``score`` says."""
    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(1e-3, 1e1, log=True)}
    return pb.Problem(space=space, objective=score, n_clients=N_CLIENTS, name="clinics")
