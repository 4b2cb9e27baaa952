"""Letters on their way to the server: one fixed-size message per client, and a box that takes or drops them.

The server reads nothing but sizes. As with vectors, a client's message decides its own letter and no other, whatever is
malformed counts as missing, and refused messages are not answered.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

from privbo.door.shares import share_sizes
from privbo.guardians.sealing import MARK_BYTES, OVERHEAD, Letter

_MAGIC = b"privbo letter 1\n"
_ROUND = struct.Struct("<Q")
_START = len(_MAGIC) + _ROUND.size + MARK_BYTES


def encode_letter(round_: int, letter: Letter) -> bytes:
    """Give a client's message: magic, round, mark, and the sealed shares in the order of guardians."""
    return _MAGIC + _ROUND.pack(round_) + bytes.fromhex(letter.mark) + b"".join(letter.sealed)


class LetterBox:
    """Collects the letters of one round.

    Args:
        round_: The round that is open.
        n_clients: Registered clients; others are unknown.
        n_guardians: G.
        n_entries: Numbers that a client adds.
    """

    def __init__(self, *, round_: int, n_clients: int, n_guardians: int, n_entries: int) -> None:
        self._round = round_
        self._n_clients = n_clients
        self._sizes = [size + OVERHEAD for size in share_sizes(n_guardians, n_entries)]
        self._letters: dict[int, Letter] = {}
        self._refused: Counter[str] = Counter()

    def receive(self, client: int, message: bytes) -> None:
        """Take a message, or drop it silently."""
        reason = self._refusal(client, message)
        if reason is not None:
            self._refused[reason] += 1
            return
        mark, at, sealed = message[_START - MARK_BYTES : _START].hex(), _START, []
        for size in self._sizes:
            sealed.append(message[at : at + size])
            at += size
        self._letters[client] = Letter(client=client, mark=mark, sealed=tuple(sealed))

    def _refusal(self, client: int, message: bytes) -> str | None:
        if type(client) is not int or not 0 <= client < self._n_clients:
            return "unknown client"
        if client in self._letters:
            return "duplicate"
        if type(message) is not bytes or len(message) != _START + sum(self._sizes):
            return "wrong size"
        if not message.startswith(_MAGIC):
            return "no letter"
        return None if _ROUND.unpack_from(message, len(_MAGIC))[0] == self._round else "another round"

    def close(self) -> Sequence[Letter]:
        """Every letter that arrived, by client."""
        return [self._letters[client] for client in sorted(self._letters)]

    @property
    def refused(self) -> dict[str, int]:
        """PRIVATE: how many messages were dropped, by reason."""
        return dict(self._refused)
