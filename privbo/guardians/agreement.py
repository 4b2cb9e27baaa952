"""The guardians' agreement on one round: what each has received, and whose shares arrived at all of them.

A guardian states once per round what it has received, before it sums anything, and keeps the statement. It sums only
after it has seen everybody's, all of the same run, round, plan and question, and of guardians that have been charged
equally often; so a server that shows them different things gets nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger.policy import canonical
from accountant.ledger.signing import checked, sign
from privbo.guardians.keys import Card, GuardianKeys
from privbo.guardians.sealing import Call
from privbo.protocol.errors import RunError

PURPOSE = "guardian's statement"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A guardian's list of what it has received for a round.

    Attributes:
        call: The round.
        guardian: Its name.
        charged: Releases of the run that its ledger held before.
        share_ids: Mark of the ciphertext of every client whose share it holds.
    """

    call: Call
    guardian: str
    charged: int
    share_ids: Mapping[int, str]

    def signed(self, keys: GuardianKeys) -> Json:
        """Give the statement as it is sent, with a signature."""
        return sign(keys.signing, PURPOSE, self.to_dict()).to_dict()

    def to_dict(self) -> Json:
        """Plain values."""
        share_ids = {str(client): share_id for client, share_id in self.share_ids.items()}
        return {"call": self.call.to_dict(), "guardian": self.guardian, "charged": self.charged, "share_ids": share_ids}

    @staticmethod
    def from_dict(content: Json) -> Statement:
        """Read what ``to_dict`` gave."""
        share_ids = {int(client): str(share_id) for client, share_id in content["share_ids"].items()}
        return Statement(
            call=Call(**content["call"]),
            guardian=str(content["guardian"]),
            charged=int(content["charged"]),
            share_ids=share_ids,
        )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The set that all guardians have agreed on.

    Attributes:
        clients: Clients of whom every guardian holds a share of the same ciphertext, in order.
        digest: Of all statements together.
    """

    clients: tuple[int, ...]
    digest: str


def agreement(signed: Sequence[object], cards: Mapping[str, Card], call: Call) -> Agreement:
    """Hold the guardians' statements against each other.

    Args:
        signed: One of every guardian, in any order.
        cards: Every guardian's public keys by name.
        call: The round as the reader means it.

    Raises:
        RunError: If one is missing, forged, or speaks of another round, plan, question or past.
    """
    found: dict[str, Statement] = {}
    for each in signed:
        statement = _read(each, cards)
        if statement.call != call:
            differs = ", ".join(k for k, v in call.to_dict().items() if statement.call.to_dict()[k] != v)
            raise RunError(f"guardian {statement.guardian} was shown another {differs}; nothing is summed")
        if statement.guardian in found:
            raise RunError(f"guardian {statement.guardian} was named twice; nothing is summed")
        found[statement.guardian] = statement
    if missing := [name for name in cards if name not in found]:
        raise RunError(f"no statement of {', '.join(missing)}; nothing is summed before all guardians have agreed")
    if len({statement.charged for statement in found.values()}) > 1:
        said = ", ".join(f"{name} {statement.charged}" for name, statement in sorted(found.items()))
        raise RunError(
            f"the guardians' ledgers disagree on the releases of {call.run} so far ({said}): one of them was lost or "
            "restored from an old copy; restore its newest one"
        )
    first, *others = (found[name].share_ids for name in cards)
    clients = sorted(client for client, share_id in first.items() if all(o.get(client) == share_id for o in others))
    body = canonical({name: found[name].to_dict() for name in cards})
    return Agreement(clients=tuple(clients), digest=hashlib.sha256(body).hexdigest())


def _read(signed: object, cards: Mapping[str, Card]) -> Statement:
    try:
        statement = Statement.from_dict(checked(signed, PURPOSE))
        key = signed["key"]  # type: ignore[index]  # it has one: its signature was checked
    except (LedgerError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"this is no guardian's statement ({error}); nothing is summed") from None
    card = cards.get(statement.guardian)
    if card is None or key != card.signing:
        raise RunError(
            f"a statement of {statement.guardian!r} is not signed with the key that is registered for it; name its new "
            "key, or restore the old one"
        )
    return statement
