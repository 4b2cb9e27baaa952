"""A consistently hostile server: it tells all parties the same untruth, in its files, its messages or its ledger.

Everything it can lie about is generated from the types: settings in the files that it ships, fields of its messages,
fields of its ledger's rows. A field that is new and has no lie yet fails ``tests/deployment/test_lies.py``.
"""

import dataclasses
import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from accountant import numerical
from accountant.errors import PrivacyError
from accountant.ledger import Ledger
from accountant.ledger.chain import Row, decode_rows, encode_rows, row_digest
from accountant.ledger.pricing import total
from privbo.flower.messages import GuardianQuestion, Question, decode, encode, nonce_of
from privbo.flower.registry import public_spec
from privbo.flower.server import serve
from privbo.protocol.files import load_arrays, read_lines
from privbo.protocol.messages import Broadcast, Standing
from privbo.runs.opening import plan_run
from tests.deployment.federations import Federation, change, unasked
from tests.deployment.grid import LoopGrid, Node

# Another value of every setting of privacy; the server's own copy of the files has it, the approved ones do not.
PRIVACY: dict[str, Any] = {
    "epsilon": 1000.0,
    "noise_multiplier": 1e-5,
    "sample_rate": 0.5,
    "delta": 1.0 - 1e-15,
    "calibration": "paper",
    "sampling": "fixed-size",
    "max_cohort": 3,
    "participations": 1,
    "adaptive_clipping": {"initial": 1e3, "target_quantile": 0.9},
    "budget": 1e6,
    "noise": "simulation",
    "channel": "anonymous",
    "unit": "other",  # the one that the run does not have
    "trust": "other",
    "guardians": 3,
    "against": "guardian",
    "protects": "records",
    "records_per_person": 2,
}
RUN: dict[str, Any] = {
    "name": "another",
    "directory": "elsewhere",
    "problem": {"n_clients": 7, "space": {"x": {"type": "real", "low": 0.0, "high": 2.0}}, "name": "bumps"},
    "algorithm": {"type": "fed-pne", "horizon": 300, "c": 0.01},
    "privacy": {"none": True},
    "rounds": 4,
    "seed": 5,
    "ledger": {"path": "LEDGER", "population": "somebody", "epsilon": 1e6, "delta": 0.5},
    "policy": {"epsilon": 1e6, "delta": 0.5},
    "attendance": {"dropout": 0.5},
    "final": "common",
    "final_share": 0.9,
    "control": "zeroed",
    "controls": ["zeroed"],
    "device": "meta",
    "threads": 2,
    "times": {"round_seconds": 2.0},
    "evaluation_seconds": 5.0,
    "executor": "threads",
    "jobs": 2,
}
ALGORITHM: dict[str, Any] = {
    "horizon": 500,
    "nu1": 3.0,
    "rho": 0.9,
    "n_children": 3,
    "reward_range": [0.0, 1e-6],
    "evaluations": 5,
    "clip": 1e6,
    "widen": 2.0,
    "centre": "client",
    "c": 0.5,
    "c1": 2.0,
    "cap": 2,
    "type": "parallel",
    "tail": "stop",
    "releases": 1,
    "release_when": "useful",
}
# Settings that are of this machine alone: they do not enter a run's identity.
OWN = {"directory", "device", "threads", "executor", "jobs", "policy", "controls"}


def files_with(federation: Federation, **changes: object) -> Path:
    """The server's own copy of the app with other settings; two tables are merged, and None drops a key."""
    home = federation.root / "lies"
    shutil.copytree(federation.home, home, dirs_exist_ok=True)
    table = tomllib.loads((home / "run.toml").read_text())
    for name in {"privacy", "algorithm"} & changes.keys():
        merged = table[name] | changes[name]
        changes[name] = {key: value for key, value in merged.items() if value is not None}
    change(home / "run.toml", **changes)
    return home


# Another value of the same type.
_CHANGED: dict[type, Callable[[Any], object]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value * 1e-6,
    str: lambda value: value[:-1] + "1" if value.endswith("0") else value + "0",
    bytes: lambda value: value[:-1] + bytes([value[-1] ^ 1]) if value else b"x",
    list: lambda value: value[1:] if value else [value],
}


def _bent(message: Any, name: str) -> Any:
    """Change one field of a message; of a broadcast's arrays every entry."""
    value = getattr(message, name)
    if value is None:
        return message
    if isinstance(value, Mapping):
        return dataclasses.replace(message, **{name: {key: _other(array) for key, array in value.items()}})
    return dataclasses.replace(message, **{name: _CHANGED[type(value)](value)})


def _other(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.bool_:
        return ~array
    return array + 1 if array.dtype.kind in "iu" else array * 1e-6


def fields_of(kind: type, but: set[str]) -> list[str]:
    return [each.name for each in dataclasses.fields(kind) if each.name not in but]


# The nested messages have lies of their own.
TO_SITES: dict[str, tuple[type, str]] = {
    f"{kind.__name__}.{name}": (kind, name)
    for kind, but in ((Question, {"broadcast", "standing"}), (Standing, set()), (Broadcast, set()))
    for name in fields_of(kind, but)
}  # fmt: skip
TO_GUARDIANS: dict[str, tuple[type, str]] = {
    f"{kind.__name__}.{name}": (kind, name)
    for kind, but in ((GuardianQuestion, {"broadcast", "kind"}), (Broadcast, set()))
    for name in fields_of(kind, but)
}


def bend_question(asked: type, kind: type, name: str, message: Message) -> None:
    """Change a field of a question to a site or a guardian, or of what is in it."""
    if asked.record not in message.content.config_records:
        return
    question, nonce = decode(asked, message.content), nonce_of(asked, message.content)
    if isinstance(question, GuardianQuestion) and question.kind == "meet":
        return
    part = {Standing: "standing", Broadcast: "broadcast"}.get(kind)
    if part is None:
        question = _bent(question, name)
    elif (inner := getattr(question, part)) is not None:
        question = dataclasses.replace(question, **{part: _bent(inner, name)})
    put(message, encode(question, nonce))


def put(message: Message, content: Any) -> None:
    """Put other content into a message on its way."""
    message.content.config_records.update(content.config_records)
    message.content.array_records.update(content.array_records)


def bend_rows(change: Callable[[dict[str, Any]], dict[str, Any] | None], message: Message) -> None:
    """Show a site another ledger, every digest of which is right: ``change`` gives other contents of a row, or None."""
    if Question.record not in message.content.config_records:
        return
    question, nonce = decode(Question, message.content), nonce_of(Question, message.content)
    rows, plan = list[Row](), question.standing.plan
    for row in decode_rows(question.chain):
        content = json.loads(row.body)
        other = change(content)
        previous = rows[-1].digest if rows else row.previous
        body = row.body if other is None else json.dumps(other).encode()
        digest = row_digest(previous, row.sequence, row.release_id, body)
        plan = digest if row.digest == question.standing.plan else plan
        rows.append(dataclasses.replace(row, body=body, previous=previous, digest=digest))
    standing = dataclasses.replace(question.standing, plan=plan, head=rows[-1].digest)
    put(message, encode(dataclasses.replace(question, standing=standing, chain=encode_rows(rows)), nonce))


def play(federation: Federation, nodes: list[Node], home: Path | None = None, bend: Any = lambda _: None) -> LoopGrid:
    """Play a run by a hostile server, which does not ask beforehand and bends every message, as far as it comes."""
    grid = LoopGrid(nodes, lambda messages: list(map(bend, messages)))
    with suppress(PrivacyError), unasked():
        serve(grid, home or federation.home, federation.run)
    return grid


def vectors_of(grid: LoopGrid) -> list[bytes]:
    """Everything that left sites in answers."""
    return [bytes(vector) for reply in grid.answers for vector in reply.get("vectors", [])]


def sent_vectors(federation: Federation) -> list[Path]:
    """Answers in the clear that sites have written down to send; a round of local work has none."""
    found = []
    for path in federation.root.glob("*/kept/*/sent/*.npz"):
        arrays = load_arrays(path)
        found += [path] if "vectors" in arrays and arrays["vectors"].shape[1] else []
    return found


def require_paid(federation: Federation, guardians: tuple[str, ...]) -> int:
    """Hold every guardian's ledgers to the approved plan; returns how many sums they have answered.

    Every sum was charged before, with the noise of the approved plan, on a ledger with the approved bound; and the
    whole plan stands in the ledger of all runs.
    """
    plan, answered = plan_run(public_spec(federation.home)), 0
    for name in guardians:
        kept = federation.root / name / "kept"
        for path in [path for path in kept.glob("*/ledger.sqlite") if path.parent.name != "_policy"]:
            with Ledger.open(path) as ledger:
                entries, rows = ledger.entries(), ledger.release_rows()
                assert ledger.verify().ok
                assert {row.release_id for row in rows} <= {entry.release_id for entry in entries}
                assert all(entry.event in dict(plan.schedule) for entry in entries)
                assert ledger.policy.budget.delta == plan.delta
                assert ledger.policy.budget.epsilon <= 2.0 * (1 + 1e-6)
                spent = total(ledger.book(), plan.delta).epsilon
                assert spent <= numerical.epsilon(plan.event, plan.delta, adjacency=plan.adjacency) * (1 + 1e-6)
                answered += len(rows)
            with Ledger.open(kept / "_policy" / "ledger.sqlite") as ledger:
                assert path.parent.name in ledger.book().runs
    return answered


def refusals(federation: Federation, party: str) -> list[dict[str, Any]]:
    """What a party has refused, from its own disk."""
    path = federation.root / party / "kept" / "refused.jsonl"
    return read_lines(path) if path.exists() else []
