"""Signatures of a run's guardians, held against its releases: by an auditor, with nothing but what lies in a bundle.

A guardian signs every answer of its own: run, round, its place in its own ledger, and the digest of its noisy sum. So a
release that some guardian never paid for has no signature of it, and two noises for one round have two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from accountant.verify.reading import (
    ANSWERED,
    BundleError,
    Json,
    hexadecimal,
    one_of,
    quoted,
    require_signed,
    rows,
    table,
    text,
    whole,
)

WHERE = ("one process", "Flower")
_FEWEST = 2
_ANSWER = ("run", "guardian", "round", "sequence", "head", "sum", "key", "signature")


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


def read_countersigned(content: Json, run: str) -> tuple[list[Countersigned], dict[str, str]]:
    """Read what a run's guardians have signed, checking every signature, and their keys by name.

    Raises:
        BundleError: If a bundle that should hold it does not, or a row is not as it was signed, or of another run.
    """
    if "guardians" not in content:
        raise BundleError("the settings name guardians, and the bundle holds nothing that they have signed")
    given = table(content["guardians"], "guardians", ("where", "cards", "signed"))
    one_of(given["where"], "where guardians ran", WHERE)
    cards = {name: hexadecimal(key, "key", 64) for name, key in table(given["cards"], "cards").items()}
    found = [_answer(table(row, "answer", _ANSWER), run) for row in rows(given["signed"], "signed")]
    if any(before.round > after.round for before, after in pairwise(found)) or len(set(found)) < len(found):
        raise BundleError("what guardians have signed is not in the order of the rounds, or stands there twice")
    return found, cards


def _answer(row: Json, run: str) -> Countersigned:
    said = {name: value for name, value in row.items() if name not in ("key", "signature")}
    require_signed(said, row["key"], row["signature"], ANSWERED)
    if row["run"] != run:
        raise BundleError(f"a guardian's signature is of {quoted(row['run'])}, not of {quoted(run)}; ask for its own")
    return Countersigned(
        guardian=text(row["guardian"], "guardian"),
        round=whole(row["round"], "round"),
        sequence=whole(row["sequence"], "sequence"),
        head=hexadecimal(row["head"], "head", 64),
        total=text(row["sum"], "sum"),
        key=str(row["key"]),
    )


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
        BundleError: If there are fewer guardians than the settings name, two of them share a key, one of them has not
            signed a release or has signed two sums of one round, its ledger went back, or its last key is another
            than the registered one.
    """
    if len(cards) != n_guardians or len(set(cards.values())) < max(n_guardians, _FEWEST):
        raise BundleError(f"the settings name {n_guardians} guardians, these are {len(set(cards.values()))}")
    if strangers := sorted({each.guardian for each in signed} - cards.keys()):
        raise BundleError(f"{', '.join(map(quoted, strangers))} signed and is none of the guardians")
    for name, key in cards.items():
        own = sorted((each for each in signed if each.guardian == name), key=lambda each: each.round)
        if missing := sorted(set(released) - {each.round for each in own}):
            raise BundleError(
                f"guardian {quoted(name)} has not signed round {missing[0]}, of which a release is stored"
            )
        for before, after in pairwise(own):
            if before.round == after.round and before.total != after.total:
                raise BundleError(f"guardian {quoted(name)} has signed two sums of round {after.round}: two noises")
            if before.round < after.round and before.sequence >= after.sequence:
                raise BundleError(f"guardian {quoted(name)} signed round {after.round} on a ledger that had gone back")
        if own and own[-1].key != key:
            raise BundleError(
                f"guardian {quoted(name)} signed round {own[-1].round} with another key than its card names"
            )


def in_words(signed: Sequence[Countersigned], cards: Mapping[str, str]) -> list[str]:
    """Name every guardian, its keys, and where its own ledger stood last, for whoever knows the guardians."""
    found = []
    for name, key in cards.items():
        own = sorted((each for each in signed if each.guardian == name), key=lambda each: each.round)
        earlier = [each for each in dict.fromkeys(one.key for one in own) if each != key]
        words = f"{quoted(name)}, key {key}" + "".join(f", earlier {each}" for each in earlier)
        words += f": row {own[-1].sequence} of its own ledger, {own[-1].head}" if own else ": nothing signed"
        found.append(words)
    return found
