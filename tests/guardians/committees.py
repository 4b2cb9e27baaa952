"""A round of guardians without a run around it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from accountant.ledger import Ledger
from accountant.ledger.book import Declaration
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.door.shares import own_units
from privbo.guardians.ciphertexts import Call, Card, Ciphertext, encrypt_shares, fresh_keys, question_digest
from privbo.guardians.guardian import Guardian, LocalCommittee, StateStore
from privbo.protocol.messages import Request
from tests.accountant.builders import declared as planned, policy
from tests.builders import mechanism_for

N, DIM, RUN, PLAN = 6, 4, "run", "p" * 64
REQUEST = Request(dim=DIM, clipping_norm=3.0, weights=np.arange(1.0, 2 * N + 1).reshape(2, N) / 50)


class Silence(SimulatedNoise):
    """A test's own source: no noise at all, so that sums can be compared; nobody but a test can hand it in."""

    def __init__(self) -> None:
        super().__init__(0)

    def stream(self, label: str) -> Silence:
        return self

    def gaussian(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)


def mechanism(request, *, n_guardians: int = 2, **settings) -> PrivateSum:
    return mechanism_for(request, **{"noise_multiplier": 1.0, "n_noises": n_guardians} | settings)


def declared(events=None, source: str = "simulation") -> Declaration:
    return planned(RUN, events=events or ((mechanism(REQUEST).event(), 5),), noise_source=source)


def guardian(
    name: str = "guardian1",
    *,
    keys,
    cards,
    noise=None,
    folder=None,
    budget=None,
    declaration=None,
    n_clients=N,
    **settings,
) -> Guardian:
    """One guardian; in a folder it goes on where an earlier one of the same folder was."""
    path = folder and folder / "ledger.sqlite"
    if path and path.exists():
        ledger = Ledger.open(path)
    else:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger.create(path, policy(budget, n_clients=n_clients))
        ledger.reserve(declaration or declared())
    return Guardian(
        name=name,
        keys=keys,
        cards=cards,
        run=RUN,
        plan=PLAN,
        mechanism=lambda request: mechanism(request, n_guardians=len(cards), **settings),
        store=StateStore(path=folder and folder / "rounds"),
        ledger=lambda: contextlib.nullcontext(ledger),
        noise=noise or SimulatedNoise(7),
        site_of=lambda _: "",
    )


def circle(n_guardians: int = 2, noise=SimulatedNoise, folder: Path | None = None, **settings) -> dict[str, Guardian]:
    keys = {f"guardian{i + 1}": fresh_keys() for i in range(n_guardians)}
    cards = {name: each.card for name, each in keys.items()}
    places = [(name, {"keys": own, "folder": folder and folder / name}) for name, own in keys.items()]
    return {
        name: guardian(name, cards=cards, noise=noise(number), **own, **settings)
        for number, (name, own) in enumerate(places)
    }


def cards_of(guardians: dict[str, Guardian]) -> dict[str, Card]:
    return next(iter(guardians.values())).cards


def shares(written: list[Ciphertext], place: int) -> list[bytes]:
    return [one.share(place) for one in written]


def committee(guardians: dict[str, Guardian], coins: NoiseSource | None = None) -> LocalCommittee:
    return LocalCommittee(guardians=guardians, coins=coins or SecureNoise(), outbox=StateStore())


def call(round_: int = 0, request=REQUEST, **changes) -> Call:
    made = {"run": RUN, "round": round_, "plan": PLAN, "question": question_digest(mechanism(request), request)}
    return Call(**made | changes)


def ciphertexts(asked, cards, request=REQUEST, *, seed=0, site="", **settings):
    made = mechanism(request, n_guardians=len(cards), **settings)
    rows = np.random.default_rng(seed).normal(size=(request.n_clients, request.dim))
    who = np.arange(request.n_clients)
    units = own_units(made, request, rows, who, SecureNoise())
    return encrypt_shares(asked, units, who.tolist(), cards=cards, site=site)


def begun(**settings) -> tuple[dict[str, Guardian], list[Ciphertext]]:
    """Two guardians, and every client's ciphertext of round 0 for them."""
    guardians = circle(**settings)
    return guardians, ciphertexts(call(), cards_of(guardians))
