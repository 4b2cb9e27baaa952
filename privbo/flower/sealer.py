"""A site's side of guardians: its vectors become one sealed letter before anything of them is written or sent.

A site's process holds the vectors of all its clients, and shares of a sum are sums of shares: so one letter under the
name of the site's first client carries what they add together, and its size does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable

from privbo.door.mechanism import PrivateSum
from privbo.door.shares import own_units
from privbo.flower.approval import PartyRun
from privbo.flower.settings import require_guardians, site_keys
from privbo.flower.site import Arrays
from privbo.guardians.panel import packed
from privbo.guardians.sealing import write_letters
from privbo.protocol.errors import RunError
from privbo.protocol.messages import FloatArray, IntArray, Request
from privbo.runs.seeds import noise_of


def sealer(
    run: PartyRun, name: str, round_: int, request: Request, clients: IntArray
) -> Callable[[FloatArray], Arrays]:
    """Give what turns a site's vectors into a letter sealed to the guardians of the approved federation.

    Args:
        run: As the site computes it.
        name: The run's name.
        round_: Index of the round.
        request: What the round asks for.
        clients: Numbers of the site's clients, ``(n,)``.

    Raises:
        RunError: If the run has no guardians.
        ConfigurationError: If the federation names another number of guardians.
    """
    cards, mechanism = require_guardians(run.federation, run.spec.privacy), run.mechanism(request)
    if not isinstance(mechanism, PrivateSum) or not cards:
        raise RunError("this run has no guardians to seal to")
    private, call = mechanism, run.call(name, round_, request)
    coins = noise_of(run.plan.noise_source, run.clients_seed or 0, f"coins of {clients.tolist()}")
    site = site_keys(run.federation, run.plan.n_clients)[int(clients[0])]

    def seal(vectors: FloatArray) -> Arrays:
        units = own_units(private, request, vectors, clients, coins.stream(str(round_)))
        together = units.sum(axis=0, keepdims=True)  # the grid's step leaves room for the sum of all clients
        return packed(write_letters(call, together, clients[:1].tolist(), cards=cards, site=site))

    return seal
