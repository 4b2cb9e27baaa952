"""Runs whose tables and digests are stored in ``stored_specs.json``: ``python -m tests.runs.stored_specs`` prints them.

A digest names what was paid for, so a stored one never changes. A setting that is added changes the tables alone.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import privbo as pb
from privbo.runs.spec import Spec, read_spec
from tests.conformance.cases import CASES
from tests.sources import ROOT

SPACE = {
    "rate": pb.Real(1e-4, 1.0, log=True),
    "kind": pb.Categorical(("plain", "deep")),
    "depth": pb.Int(1, 8, when={"kind": "deep"}),
    "width": pb.Int(1, 8),
}
LEDGER = pb.SharedLedger(
    path="ward-3.sqlite",
    population="ward 3",
    epsilon=4.0,
    delta=1e-5,
    rule="envelope",
    releases=[pb.DeclaredReleases(count=100, sample_rate=0.1, noise_multiplier=1.2)],
)
MEANS = {"device": "cuda:0", "threads": 4, "controls": ["local", "zeroed"], "executor": "threads", "jobs": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seed": {"seed": 7, "rounds": 12},
    "ledger": {"ledger": LEDGER},
    "ledger without a bound": {"ledger": pb.SharedLedger(path="w.sqlite", population="w")},
    "policy": {"policy": pb.Policy(epsilon=8.0, delta=1e-5, max_rounds=50)},
    "attendance": {"attendance": pb.Attendance(dropout=0.25, late=0.5, seed=3)},
    "times": {"times": pb.Times(round_seconds=30.0, client_seconds=2.0), "evaluation_seconds": 1},
    "final": {"final": "common", "final_share": 0.2},
    "control": {"control": "zeroed"},
    "means": MEANS,
    "no privacy": {"privacy": pb.NoPrivacy()},
    "sampled": {"privacy": pb.Privacy(noise_multiplier=1.5, sample_rate=0.25, delta="paper", budget=3.0)},
    "clipping": {"privacy": pb.Privacy(epsilon=3.0, adaptive_clipping=pb.AdaptiveClipping(count_stddev=2.0))},
    "guardians": {"privacy": pb.Privacy(epsilon=3.0, trust="guardians", guardians=3)},
    "all": {"seed": 1, "ledger": LEDGER, "attendance": pb.Attendance(), "final": "common", **MEANS},
} | {str(case): {"algorithm": case.algorithm, "privacy": case.privacy()} for case in CASES}
FILES = ["experiments/quickstart.toml", "experiments/examples/hospitals_flower/app/run.toml"]
TABLE: dict[str, Any] = {
    "name": "toy",
    "rounds": 5,
    "problem": {"objective": "m:f", "n_clients": 3, "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}},
    "algorithm": {"type": "dp-fts-de"},
    "privacy": {"epsilon": 2.0},
}
FAULTS: dict[str, dict[str, Any]] = {
    "unknown key": {"bogus": 1},
    "no name": {"name": None},
    "name": {"name": "two words"},
    "rounds": {"rounds": 0},
    "text for a number": {"rounds": "5"},
    "two at once": {"rounds": 0, "seed": -1, "jobs": 0},
    "a setting and an algorithm": {"rounds": 0, "algorithm": {"type": "nothing"}},
    "a setting after an algorithm": {"jobs": 0, "algorithm": {"type": "nothing"}},
    "a setting and a privacy": {"final_share": 1.0, "privacy": {"epsilon": -1.0}},
    "problem": {"problem": {"n_clients": 0}},
    "problem and privacy": {"problem": {"n_clients": 0}, "privacy": {}},
    "problem's key": {"problem": {"clients": 3}},
    "no clients": {"problem": {"objective": "m:f"}},
    "a factory alone": {"problem": {"factory": "m:f"}},
    "space": {"problem": {"n_clients": 3, "space": {"x": {"type": "real", "low": 2.0, "high": 1.0}}}},
    "problem is no table": {"problem": 3},
    "algorithm": {"algorithm": {"type": "nothing"}},
    "algorithm's key": {"algorithm": {"type": "dp-fts-de", "n_features": 0}},
    "algorithm is no table": {"algorithm": "dp-fts-de"},
    "no type": {"algorithm": {}},
    "privacy": {"privacy": {"epsilon": -1.0}},
    "no target": {"privacy": {}},
    "privacy is no table": {"privacy": 2.0},
    "none and epsilon": {"privacy": {"none": True, "epsilon": 1.0}},
    "final": {"final": "vote"},
    "ledger": {"ledger": {"path": "w"}},
    "policy": {"policy": {"epsilon": 0.0}},
    "times": {"times": {"round_seconds": 0}},
    "attendance": {"attendance": {"late": 2.0}},
    "controls": {"controls": ["none"]},
    "directory": {"directory": 3},
}


def score(client: int, params: dict[str, Any]) -> float:
    return -float(params["rate"])


def made(changes: dict[str, Any]) -> Spec:
    problem = pb.Problem(
        space=SPACE, constraints=["width <= 6"], objective=score, n_clients=5, name="stored", fingerprint="2007"
    )
    plain = {"name": "stored", "problem": problem, "algorithm": pb.SharedPrior(), "privacy": pb.Privacy(epsilon=2.0)}
    return Spec(**plain | {"rounds": 6} | changes)


def stored(spec: Spec) -> dict[str, Any]:
    """A run's digest, and those of its table and its departures as they are written, the order of keys included."""
    written = {"table": spec.to_dict(), "departures": spec.departures()}
    texts = {name: hashlib.sha256(json.dumps(table).encode()).hexdigest() for name, table in written.items()}
    return {"digest": spec.digest(), **texts}


def refused(changes: dict[str, Any]) -> str:
    table = {key: value for key, value in (TABLE | changes).items() if value is not None}
    try:
        Spec.from_dict(table)
    except pb.ConfigurationError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def everything() -> dict[str, dict[str, Any]]:
    return {
        "runs": {name: stored(made(changes)) for name, changes in SETTINGS.items()},
        "files": {name: stored(read_spec(ROOT / name, load=False)) for name in FILES},
        "faults": {name: refused(changes) for name, changes in FAULTS.items()},
    }


if __name__ == "__main__":
    print(json.dumps(everything(), indent=1))
