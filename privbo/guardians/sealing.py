"""Letters: a client's shares, each sealed to one guardian by HPKE (RFC 9180) as ``cryptography`` has it.

A sealed share opens with that guardian's key and for one context only: run, round, plan, question, client, the client's
site, guardian, and the letter's mark. Its size says nothing: it is the same whether the client takes part or not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from accountant.events import Json
from accountant.ledger.policy import canonical
from privbo.door.mechanism import PrivateSum
from privbo.door.shares import split
from privbo.guardians.keys import Card
from privbo.protocol.messages import IntArray, Request

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
OVERHEAD = 48  # 32 bytes of the encapsulated key, 16 of the tag
MARK_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Call:
    """One round as clients, guardians and server must all mean it.

    Attributes:
        run: Name of the run.
        round: Index of the round.
        plan: Digest of the run's declared plan.
        question: Digest of what is asked and of the mechanism that answers it.
    """

    run: str
    round: int
    plan: str
    question: str

    def to_dict(self) -> Json:
        """Plain values."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One client's sealed shares of one round.

    Attributes:
        client: Its number.
        mark: Random name of the letter, 16 hexadecimal digits, the same for every guardian: shares of two letters of
            one client never meet in a sum.
        sealed: For every guardian, in their order.
    """

    client: int
    mark: str
    sealed: tuple[bytes, ...]


def question_digest(mechanism: PrivateSum, request: Request) -> str:
    """Digest everything that decides how a round's vectors are clipped, weighted, rounded, summed and hidden.

    Numbers that every machine computes for itself stay out, but for the grid's step, on which all must agree.
    """
    rule = (mechanism.noise_multiplier, mechanism.sample_rate, mechanism.sampling, mechanism.adjacency.value)
    noises = (mechanism.calibration, mechanism.n_noises, mechanism.n_counted, mechanism.grid_step())
    asked = (request.dim, request.clipping_norm, request.reward_bound, request.noise_scale, request.weights.shape)
    found = hashlib.sha256(repr((rule, noises, asked)).encode())
    found.update(np.ascontiguousarray(request.weights, dtype="<f8").tobytes())
    return found.hexdigest()


def write_letters(
    call: Call, units: IntArray, clients: Sequence[int], *, cards: Mapping[str, Card], site: str
) -> list[Letter]:
    """Split some clients' rows into shares and seal them.

    Args:
        call: The round.
        units: What they add in grid units, ``(n, n_entries)``.
        clients: Their numbers, ``(n,)``.
        cards: Every guardian's public keys by name, in their order.
        site: Public key of the clients' site; empty where sites have none.
    """
    keys = {name: card.sealing_key for name, card in cards.items()}
    letters = []
    for client, shares in zip(clients, split(units, len(cards)), strict=True):
        mark = os.urandom(MARK_BYTES).hex()
        sealed = tuple(
            SUITE.encrypt(share, key, info=_context(call, int(client), site, name, mark))
            for share, (name, key) in zip(shares, keys.items(), strict=True)
        )
        letters.append(Letter(client=int(client), mark=mark, sealed=sealed))
    return letters


def open_share(
    key: X25519PrivateKey, sealed: bytes, call: Call, *, client: int, site: str, guardian: str, mark: str
) -> bytes | None:
    """Open a share; None where it was not sealed to this key and for exactly this."""
    try:
        return bytes(SUITE.decrypt(sealed, key, info=_context(call, client, site, guardian, mark)))
    except (InvalidTag, ValueError, TypeError):
        return None


def _context(call: Call, client: int, site: str, guardian: str, mark: str) -> bytes:
    bound = {"client": client, "site": site, "guardian": guardian, "mark": mark}
    return b"privbo share 1\n" + canonical(call.to_dict() | bound)
