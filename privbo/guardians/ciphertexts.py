"""Ciphertexts: a client's shares, each encrypted for one guardian by HPKE (RFC 9180) as ``cryptography`` has it.

A guardian has two keys: one to which clients encrypt shares (X25519), one that signs what it says (Ed25519).

An encrypted share opens with that guardian's key and for one context only: run, round, plan, question, client, the
client's site, guardian, and the ciphertext's share id. Its size says nothing: it is the same whether the client takes
part or not.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from pydantic import Field

from accountant.ledger.policy import canonical
from accountant.ledger.signing import kept_secret, signing_key
from privbo.door.mechanism import PrivateSum
from privbo.door.payload import Box
from privbo.door.shares import share_sizes, split
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Array, IntArray, Request
from privbo.protocol.settings import settings

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
OVERHEAD = 48  # 32 bytes of the encapsulated key, 16 of the tag
SHARE_ID_BYTES = 8
_MAGIC = b"privbo cipher 1\n"
_ROUND = struct.Struct("<Q")
SHARE = struct.Struct(f"<q{SHARE_ID_BYTES}s")  # client and share id, before an encrypted share
_START = len(_MAGIC) + _ROUND.size + SHARE_ID_BYTES


@settings(table="guardians")
class Card:
    """Public keys of one guardian, 64 hexadecimal digits each; fixed and public for the length of a run.

    Attributes:
        sealing: Shares for it are encrypted to this key.
        signing: What it says is signed with the key that belongs to this one.
    """

    sealing: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signing: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class GuardianKeys:
    """Private keys of one guardian, which leave its machine never.

    Attributes:
        sealing: Opens shares.
        signing: Signs statements and answers.
    """

    sealing: X25519PrivateKey
    signing: Ed25519PrivateKey

    @property
    def card(self) -> Card:
        """The public halves."""
        return Card(
            sealing=self.sealing.public_key().public_bytes_raw().hex(),
            signing=self.signing.public_key().public_bytes_raw().hex(),
        )


def fresh_keys() -> GuardianKeys:
    """Draw keys that live as long as the process."""
    return GuardianKeys(sealing=X25519PrivateKey.generate(), signing=Ed25519PrivateKey.generate())


def guardian_keys(folder: Path) -> GuardianKeys:
    """Read a guardian's keys from its folder; draws them, for its owner's eyes only, where there are none.

    Raises:
        RunError: If what stands there is no key.
        LedgerError: If what stands there is no signing key.

    Example:
        >>> import tempfile
        >>> home = Path(tempfile.mkdtemp())
        >>> guardian_keys(home).card == guardian_keys(home).card
        True
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    path = folder / "sealing.key"
    kept = kept_secret(path, lambda: X25519PrivateKey.generate().private_bytes_raw())
    try:
        sealing = X25519PrivateKey.from_private_bytes(kept)
    except ValueError as error:
        raise RunError(f"{path} holds no sealing key ({error}); restore it from a copy or move it away") from None
    return GuardianKeys(sealing=sealing, signing=signing_key(folder / "signing.key"))


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


@dataclass(frozen=True, kw_only=True)
class Ciphertext:
    """One client's encrypted shares of one round.

    Attributes:
        client: Its number.
        share_id: Random name, 16 hexadecimal digits, the same for every guardian: shares of two ciphertexts of one
            client never meet in a sum.
        sealed: For every guardian, in their order.
    """

    client: int
    share_id: str
    sealed: tuple[bytes, ...]

    def share(self, place: int) -> bytes:
        """Give the part that is for one guardian, as the server hands it over: client, share id, encrypted share."""
        return SHARE.pack(self.client, bytes.fromhex(self.share_id)) + self.sealed[place]


def question_digest(mechanism: PrivateSum, request: Request) -> str:
    """Digest everything that decides how a round's vectors are clipped, weighted, rounded, summed and hidden.

    Numbers that every machine computes for itself stay out, but for the grid's step, on which all must agree.
    """
    sample = mechanism.sample
    rule = (mechanism.noise_multiplier, sample.sample_rate, sample.sampling, mechanism.adjacency.value)
    noises = (mechanism.calibration, mechanism.n_noises, mechanism.n_counted, mechanism.grid_step())
    # A size of one is what digests of earlier questions mean.
    unit = (request.unit_bound, *([request.group_size] if request.group_size > 1 else []))
    asked = (request.dim, request.clipping_norm, *unit, request.noise_scale, request.weights.shape)
    found = hashlib.sha256(repr((rule, noises, asked)).encode())
    found.update(np.ascontiguousarray(request.weights, dtype="<f8").tobytes())
    return found.hexdigest()


def encrypt_shares(
    call: Call, units: IntArray, clients: Sequence[int], *, cards: Mapping[str, Card], site: str
) -> list[Ciphertext]:
    """Split some clients' rows into shares and encrypt them.

    Args:
        call: The round.
        units: What they add in grid units, ``(n, n_entries)``.
        clients: Their numbers, ``(n,)``.
        cards: Every guardian's public keys by name, in their order.
        site: Public key of the clients' site; empty where sites have none.
    """
    keys = {name: X25519PublicKey.from_public_bytes(bytes.fromhex(card.sealing)) for name, card in cards.items()}
    ciphertexts = []
    for client, shares in zip(clients, split(units, len(cards)), strict=True):
        share_id = os.urandom(SHARE_ID_BYTES).hex()
        sealed = tuple(
            SUITE.encrypt(share, key, info=_context(call, int(client), site, name, share_id))
            for share, (name, key) in zip(shares, keys.items(), strict=True)
        )
        ciphertexts.append(Ciphertext(client=int(client), share_id=share_id, sealed=sealed))
    return ciphertexts


def open_share(
    key: X25519PrivateKey, sealed: bytes, call: Call, *, client: int, site: str, guardian: str, share_id: str
) -> bytes | None:
    """Open a share; None where it was not encrypted for this key and for exactly this."""
    try:
        return bytes(SUITE.decrypt(sealed, key, info=_context(call, client, site, guardian, share_id)))
    except (InvalidTag, ValueError, TypeError):
        return None


def _context(call: Call, client: int, site: str, guardian: str, share_id: str) -> bytes:
    bound = {"client": client, "site": site, "guardian": guardian, "share_id": share_id}
    return b"privbo share 1\n" + canonical(vars(call) | bound)


def encode_ciphertext(round_: int, ciphertext: Ciphertext) -> bytes:
    """Give a client's message: magic, round, share_id, and the encrypted shares in the order of guardians."""
    return _MAGIC + _ROUND.pack(round_) + bytes.fromhex(ciphertext.share_id) + b"".join(ciphertext.sealed)


def stored(round_: int, ciphertexts: Sequence[Ciphertext]) -> dict[str, Array]:
    """Give ciphertexts as arrays, as they are kept: every client's number and its message."""
    messages = [np.frombuffer(encode_ciphertext(round_, ciphertext), dtype=np.uint8) for ciphertext in ciphertexts]
    return {"clients": np.array([each.client for each in ciphertexts], dtype=np.int64), "messages": np.array(messages)}


class CiphertextBox(Box):
    """Collects the ciphertexts of one round.

    Args:
        round_: The round that is open.
        request: What is asked for; clients that it does not weigh are unknown.
        n_guardians: G.
    """

    def __init__(self, round_: int, request: Request, n_guardians: int) -> None:
        sizes = [size + OVERHEAD for size in share_sizes(n_guardians, request.dim * request.n_blocks)]
        self._ends = list(itertools.accumulate(sizes, initial=_START))
        head = {"no ciphertext": _MAGIC, "another round": _ROUND.pack(round_)}
        super().__init__(n_clients=request.n_clients, head=head, size=self._ends[-1])

    def close(self) -> Sequence[Ciphertext]:
        """Every ciphertext that arrived, by client; later messages are late."""
        self._closed = True
        return [
            Ciphertext(
                client=client,
                share_id=message[_START - SHARE_ID_BYTES : _START].hex(),
                sealed=tuple(message[begin:end] for begin, end in itertools.pairwise(self._ends)),
            )
            for client, message in sorted(self._arrived.items())
        ]
