"""Sums that sites make of their own clients' vectors. PRIVATE until the door adds noise to them.

A site that its clients trust clips, weighs, rounds and sums their vectors by the door's own code (``Summing``); each
client's own coin, drawn where the client is, decides whether it is in. One vector of integers on the release's grid
leaves the site, so the release is that of the same vectors in one piece, bit for bit.

One client moves its site's sum by its clipped, weighed vector and no other site's, so the mechanism's sensitivity holds
for the clients of every site that clips, whatever other sites send. It does not hold for the clients of a site that
does not: they have to trust it. The door sees no more than that a sum is longer than all clients of its site together
could make it; such a sum is dropped, and its clients are absent.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.partial import Partial, Summing
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, Request

_MAGIC = b"privbo site's sum 1\n"
_HEADER = struct.Struct("<QQQ")
_OVERHEAD = len(_MAGIC) + _HEADER.size
_ROUNDING = 1.0 + 2.0**-30  # of the norms that are compared; clipping stays below its bound by less


@dataclass(frozen=True, kw_only=True, repr=False)
class SiteSums:
    """PRIVATE: sums of the sites that answered one round, together and without noise.

    Attributes:
        round: The round.
        totals: In units of the release's grid, ``(n_blocks, dim)``.
    """

    round: int
    totals: IntArray


def require_summable(mechanism: PrivateSum, *, adapts: bool) -> None:
    """Refuse a release whose sample or bound a site would have to be told by somebody who knows it.

    Raises:
        ConfigurationError: Naming it.
    """
    if adapts or not (mechanism.everyone or mechanism.sampling == "poisson"):
        raise ConfigurationError(
            f"sampling={mechanism.sampling!r}, an adaptive bound: {adapts}; sites sum where everybody takes part or "
            "each client draws its own coin, under a fixed clipping norm"
        )


def own_sum(
    mechanism: PrivateSum, request: Request, rows: FloatArray, clients: IntArray, coins: NoiseSource
) -> Partial:
    """PRIVATE: what some clients add to a release together, with what clipping did to them.

    Args:
        mechanism: Of the release.
        request: What is asked for.
        rows: Their vectors, ``(n, dim)``, not finite where absent.
        clients: Their numbers, ``(n,)``.
        coins: Where each client's own coin comes from.
    """
    joins = coins.coins((len(clients),), mechanism.sample_rate)
    weights = request.weights[:, clients]
    return Summing(mechanism=mechanism, dim=request.dim, weights=weights, participants=joins)(rows)


def encode_sum(round: int, totals: IntArray) -> bytes:  # noqa: A002 (the protocol's word)
    """A site's message: magic, round, shape, integers in little-endian order; its length tells nothing of anybody."""
    return _MAGIC + _HEADER.pack(round, *totals.shape) + np.ascontiguousarray(totals, dtype="<i8").tobytes()


class SumBox:
    """Collects the sums of one round, one from every site, under the number of the site's first client.

    Args:
        round: The round that is open.
        mechanism: Of its release.
        request: What is asked for.
        sites: Clients of every site; no client of two.

    Raises:
        ConfigurationError: If a client is none of the request's, or at two sites.
    """

    def __init__(
        self,
        *,
        round: int,  # noqa: A002 (the protocol's word)
        mechanism: PrivateSum,
        request: Request,
        sites: Iterable[Sequence[int]],
    ) -> None:
        groups = [np.array(clients, dtype=np.int64) for clients in sites]
        placed = np.concatenate(groups) if groups else np.empty(0, dtype=np.int64)
        if len(np.unique(placed)) != len(placed) or np.any((placed < 0) | (placed >= request.n_clients)):
            raise ConfigurationError("a client is at two sites or none of the run's; register each at one site")
        unit = mechanism.applied_bound / mechanism.grid_step()
        self._longest = {int(group[0]): request.weights[:, group].sum(axis=1) * unit * _ROUNDING for group in groups}
        self._round, self._shape = round, (request.n_blocks, request.dim)
        self._totals = np.zeros(self._shape, dtype=np.int64)
        self._answered: set[int] = set()
        self._closed = False
        self._refused: Counter[str] = Counter()

    def receive(self, client: int, message: bytes) -> None:
        """Take a site's sum, or drop it silently.

        Args:
            client: Number of the site's first client; the channel has proved that the sender is this site.
            message: What it sent.
        """
        found = self._vetted(client, message)
        if isinstance(found, str):
            self._refused[found] += 1
            return
        self._answered.add(client)
        self._totals += found

    def _vetted(self, client: int, message: bytes) -> IntArray | str:  # noqa: PLR0911 (one line per reason)
        """The sum, or the reason why it is none."""
        if self._closed:
            return "late"
        if type(client) is not int or client not in self._longest:
            return "unknown site"
        if client in self._answered:
            return "duplicate"
        if type(message) is not bytes or len(message) != _OVERHEAD + 8 * self._totals.size:
            return "wrong size"
        if not message.startswith(_MAGIC):
            return "no sum"
        round_, *shape = _HEADER.unpack_from(message, len(_MAGIC))
        if tuple(shape) != self._shape:
            return "wrong shape"
        if round_ != self._round:
            return "another round"
        totals = np.frombuffer(message, dtype="<i8", offset=_OVERHEAD).reshape(self._shape).astype(np.int64)
        if np.any(np.linalg.norm(totals.astype(np.float64), axis=1) > self._longest[client]):
            return "not clipped"
        return totals

    def close(self) -> SiteSums:
        """The sums of all sites that answered; later messages are late."""
        self._closed = True
        return SiteSums(round=self._round, totals=self._totals.copy())

    @property
    def refused(self) -> dict[str, int]:
        """PRIVATE: how many messages were dropped, by reason; covered by no epsilon."""
        return dict(self._refused)
