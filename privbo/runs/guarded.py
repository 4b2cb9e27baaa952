"""Guardians of a run in this process: for tests, plans and sweeps, with ledgers and stores of their own all the same.

DIR/guardians.json                     who they are: names and public keys (public)
DIR/guardians.jsonl                    what every guardian has signed: round, place in its ledger (public)
DIR/private/guardians/NAME/            one guardian's keys, ledger and store
DIR/private/guardians/outbox/          clients' ciphertexts of the round that is open
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from accountant.events import Json
from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger.address import is_postgres
from accountant.ledger.book import Declaration
from privbo.door.door import Gather
from privbo.guardians.ciphertexts import Card, fresh_keys, guardian_keys
from privbo.guardians.guardian import Guardian, LocalCommittee, StateStore
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import OnceLines, read_json, write_json
from privbo.protocol.settings import dump_settings
from privbo.runs.evidence import declared_by, plan_name
from privbo.runs.manifest import Manifest, RunDirectory, noise_of

HERE = "one process"
GUARDIANS, RECEIPTS = "guardians.json", "guardians.jsonl"


def guarded_here(manifest: Manifest, home: RunDirectory | None, policy: LedgerPolicy, root: int) -> Gather:
    """Play a run's guardians in this process.

    Args:
        manifest: Of the run.
        home: Its directory; None keeps everything in memory.
        policy: Of the run's ledger, which is that of every guardian's.
        root: PRIVATE: root of the run's seeds, for a simulation.

    Raises:
        RunError: If a guardian's keys or ledger are gone.
        BudgetExceeded: If a guardian's ledger does not hold the plan.
    """
    names = tuple(f"guardian{number}" for number in range(1, manifest.plan.privacy.n_noises + 1))
    folder, shared = None if home is None else home.private / "guardians", manifest.spec.ledger
    if shared is not None and is_postgres(shared.path):
        raise ConfigurationError("guardians keep ledgers of their own, in files; name a file in [ledger]")
    keys = {name: fresh_keys() if folder is None else guardian_keys(folder / name) for name in names}
    cards = {name: held.card for name, held in keys.items()}
    if home is not None:
        keep_cards(home, cards, HERE)
    declared = declared_by(manifest.plan, run=manifest.run_id, settings=manifest.spec.digest())
    stores = {name: StateStore(path=None if folder is None else folder / name / "rounds") for name in names}
    # A guardian's own ledger; where runs share one, the guardian's stands beside it and is shared by them, too.
    alone = {name: None if folder is None else folder / name / "ledger.sqlite" for name in names}
    ledgers = alone if shared is None else {name: Path(f"{shared.place}.{name}") for name in names}
    guardians = {
        name: Guardian(
            name=name,
            keys=keys[name],
            cards=cards,
            run=manifest.run_id,
            plan=plan_name(declared),
            mechanism=manifest.plan.mechanism,
            store=stores[name],
            ledger=ledger_of(ledgers[name], policy, declared, stores[name]),
            noise=noise_of(manifest.plan.noise_source, root, f"noise of {name}"),
        )
        for name in names
    }
    return LocalCommittee(
        guardians=guardians,
        coins=noise_of(manifest.plan.noise_source, root, "coins"),
        outbox=StateStore(path=None if folder is None else folder / "outbox"),
        note=(lambda _: None) if home is None else keeping(home),  # a simulation in memory keeps no receipts
    ).gather


def ledger_of(
    path: Path | None, policy: LedgerPolicy, declared: Declaration, store: StateStore
) -> Callable[[], AbstractContextManager[Ledger]]:
    """Make or open a guardian's ledger and reserve the run's plan in it; returns what opens it.

    Raises:
        RunError: If it is gone though the guardian has stated something, or is a ledger of something else.
        BudgetExceeded: If it does not hold the plan.
    """
    if path is None:
        kept = Ledger.create(None, policy)
        kept.reserve(declared)
        return lambda: nullcontext(kept)
    if not path.exists():
        if not store.is_empty():
            raise RunError(f"{path} is gone though this guardian has spoken; restore it from its newest copy")
        Ledger.create(path, policy).close()
    with Ledger.open(path) as ledger:
        if ledger.policy != policy:
            raise RunError(f"{path} is another run's ledger: {ledger.policy.difference(policy)}; name its own ledger")
        ledger.reserve(declared)
    return lambda: Ledger.open(path)


def keep_cards(home: RunDirectory, cards: dict[str, Card], where: str) -> None:
    """Write down who a run's guardians are, or hold them against what stands there.

    Raises:
        RunError: If other keys stand there.
    """
    path = home.path / GUARDIANS
    table = {name: dump_settings(card) for name, card in cards.items()}
    wanted = {"where": where, "cards": table}
    if not path.exists():
        write_json(path, wanted)
    elif (found := read_json(path)) != wanted:
        stored = found["cards"]
        changed = sorted(name for name in cards if stored.get(name) != table[name]) or [str(found["where"])]
        raise RunError(
            f"{path}: the run began with other guardians ({', '.join(changed)} differ); restore their keys, or, if "
            f"they were replaced on purpose, move {path.name} away: open rounds are then asked anew"
        )


def keeping(home: RunDirectory) -> Callable[[Json], None]:
    """Give what keeps a guardian's signed receipts in public, each once, on the disk before the release is stored."""
    lines = OnceLines(path=home.path / RECEIPTS, key="signature", durable=True)
    return lambda receipt: lines.add({**receipt["content"], "key": receipt["key"], "signature": receipt["signature"]})
