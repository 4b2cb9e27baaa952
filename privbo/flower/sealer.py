"""A site's side of guardians: its vectors become one sealed letter before anything of them is written or sent.

A site's process holds the vectors of all its clients, and shares of a sum are sums of shares: so one letter under the
name of the site's first client carries what they add together, and its size does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable

from privbo.door.mechanism import PrivateSum
from privbo.door.shares import own_units
from privbo.flower.messages import Header
from privbo.flower.settings import Federation, SiteSettings, require_guardians, site_keys
from privbo.flower.site import Arrays, Question
from privbo.guardians.panel import packed
from privbo.guardians.sealing import Call, question_digest, write_letters
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import FloatArray, IntArray
from privbo.runs.seeds import noise_of
from privbo.runs.spec import Spec


def require_same_trust(spec: Spec, site: SiteSettings, federation: Federation, question: Question) -> None:
    """Refuse to send a vector in the clear where guardians share them, or to seal it to foreign keys.

    Raises:
        ConfigurationError: Naming what differs.
    """
    cards = require_guardians(federation, spec.privacy)
    if question.dim and (spec.privacy.trust != "server") != (question.guarded is not None):
        raise ConfigurationError(f"run.toml says trust={spec.privacy.trust!r}, the server asks otherwise")
    if site.guardians is not None and dict(site.guardians) != cards:
        raise ConfigurationError(
            "site.toml names other guardians than federation.toml: nothing is sent before both agree on their keys"
        )


def sealer(
    spec: Spec, federation: Federation, header: Header, question: Question, clients: IntArray
) -> Callable[[FloatArray], Arrays]:
    """Give what turns a site's vectors into a sealed letter, by the site's own reading of the run's privacy."""

    def seal(vectors: FloatArray) -> Arrays:
        guarded, round_ = question.guarded, question.broadcast.round
        if guarded is None:
            raise RunError("nothing was asked that could be sealed")
        mechanism = spec.privacy.mechanism(guarded.request, guarded.noise_multiplier)
        if not isinstance(mechanism, PrivateSum):
            raise RunError("a plain sum has no guardians")
        coins = noise_of(spec.privacy.noise_source, header.clients_seed or 0, f"coins of {clients.tolist()}")
        units = own_units(mechanism, guarded.request, vectors, clients, coins.stream(str(round_)))
        together = units.sum(axis=0, keepdims=True)  # the grid's step leaves room for the sum of all clients
        digest = question_digest(mechanism, guarded.request)
        call = Call(run=question.run, round=round_, plan=guarded.plan, question=digest)
        site = site_keys(federation, spec.problem.n_clients)[int(clients[0])]
        return packed(write_letters(call, together, clients[:1].tolist(), cards=federation.guardians, site=site))

    return seal
