"""Signatures of a run's guardians, held against its releases: by an auditor, with nothing but what lies in a bundle.

A guardian signs every answer of its own: run, round, its place in its own ledger, and the digest of its noisy sum. So a
release that some guardian never paid for has no signature of it, and two noises for one round have two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger.signing import ANSWERED, checked

_FEWEST = 2


@dataclass(frozen=True, kw_only=True)
class Countersigned:
    """One guardian's answer to one round, its signature known to be good.

    Attributes:
        guardian: Its name.
        round: The round.
        sequence: Place of the charge in the guardian's own ledger.
        head: That ledger's chain hash after the charge.
        total: Digest of its noisy sum.
        key: Public key that signed.
    """

    guardian: str
    round: int
    sequence: int
    head: str
    total: str
    key: str


def read_countersigned(rows: Sequence[Mapping[str, object]], run: str) -> list[Countersigned]:
    """Read a run's ``guardians.jsonl``, checking every signature.

    Raises:
        LedgerError: If a row is not as it was signed, or of another run.
    """
    found = []
    for row in rows:
        content: Json = {name: value for name, value in row.items() if name not in ("key", "signature")}
        checked({"content": content, "key": row.get("key"), "signature": row.get("signature")}, ANSWERED)
        if content.get("run") != run:
            raise LedgerError(f"a guardian's signature is of {content.get('run')}, not of {run}; ask for its own")
        found.append(
            Countersigned(
                guardian=str(content["guardian"]),
                round=int(str(content["round"])),
                sequence=int(str(content["sequence"])),
                head=str(content["head"]),
                total=str(content["sum"]),
                key=str(row["key"]),
            )
        )
    return found


def require_countersigned(
    signed: Sequence[Countersigned], cards: Mapping[str, str], *, n_guardians: int, released: Sequence[int]
) -> None:
    """Hold guardians' signatures against a run's releases.

    Args:
        signed: What guardians have signed.
        cards: Every guardian's registered signing key by name.
        n_guardians: Number of guardians that the run's settings name.
        released: Rounds of which a release is stored.

    Raises:
        LedgerError: If there are fewer guardians than the settings name, two of them share a key, one of them has not
            signed a release or has signed two sums of one round, its ledger went back, or its last key is another
            than the registered one.
    """
    if len(cards) != n_guardians or len(set(cards.values())) < max(n_guardians, _FEWEST):
        raise LedgerError(f"the settings name {n_guardians} guardians, these are {len(set(cards.values()))}")
    if strangers := sorted({each.guardian for each in signed} - cards.keys()):
        raise LedgerError(f"{', '.join(strangers)} signed and is none of the guardians")
    for name, key in cards.items():
        own = sorted((each for each in signed if each.guardian == name), key=lambda each: each.round)
        if missing := sorted(set(released) - {each.round for each in own}):
            raise LedgerError(f"guardian {name} has not signed round {missing[0]}, of which a release is stored")
        for before, after in pairwise(own):
            if before.round == after.round and before.total != after.total:
                raise LedgerError(f"guardian {name} has signed two sums of round {after.round}: two noises")
            if before.round < after.round and before.sequence >= after.sequence:
                raise LedgerError(f"guardian {name} signed round {after.round} on a ledger that had gone back")
        if own and own[-1].key != key:
            raise LedgerError(f"guardian {name} signed round {own[-1].round} with another key than its card names")


def in_words(signed: Sequence[Countersigned], cards: Mapping[str, str]) -> list[str]:
    """Name every guardian, its keys, and where its own ledger stood last, for whoever knows the guardians."""
    found = []
    for name, key in cards.items():
        own = sorted((each for each in signed if each.guardian == name), key=lambda each: each.round)
        earlier = [each for each in dict.fromkeys(one.key for one in own) if each != key]
        words = f"{name}, key {key}" + "".join(f", earlier {each}" for each in earlier)
        words += f": row {own[-1].sequence} of its own ledger, {own[-1].head}" if own else ": nothing signed"
        found.append(words)
    return found
