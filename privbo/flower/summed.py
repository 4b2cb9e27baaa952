"""A site's side of sums: its clients trust it, so their vectors become one sum before anything of them is sent.

The site reads the run's privacy itself and clips, weighs and rounds as the door does, by the door's code. What
clipping did to its clients stays on its own disk (``clipping.jsonl``): sums under other bounds, or norms beside a sum,
would tell the server of a small site's clients one by one.
"""

from __future__ import annotations

from collections.abc import Callable

from privbo.door.mechanism import PrivateSum
from privbo.door.site_sums import own_sum, require_summable
from privbo.flower.messages import Header
from privbo.flower.site import Arrays, Question, SiteRecord
from privbo.protocol.errors import RunError
from privbo.protocol.files import append_line
from privbo.protocol.messages import FloatArray, IntArray
from privbo.runs.seeds import noise_of
from privbo.runs.spec import Spec


def summing(
    spec: Spec, header: Header, question: Question, clients: IntArray, record: SiteRecord
) -> Callable[[FloatArray], Arrays]:
    """Give what turns a site's vectors into their sum, by the site's own reading of the run's privacy."""

    def add_up(vectors: FloatArray) -> Arrays:
        guarded, round_ = question.guarded, question.broadcast.round
        if guarded is None:
            raise RunError("nothing was asked that could be summed")
        mechanism = spec.privacy.mechanism(guarded.request, guarded.noise_multiplier)
        if not isinstance(mechanism, PrivateSum):
            raise RunError("a sum without noise is none that a site makes")
        require_summable(mechanism, adapts=False)
        coins = noise_of(spec.privacy.noise_source, header.clients_seed or 0, f"coins of {clients.tolist()}")
        made = own_sum(mechanism, guarded.request, vectors, clients, coins.stream(str(round_)))
        # A crash before the sum was kept leaves a line behind; the round is then drawn again, and the last line counts.
        append_line(record.path / "clipping.jsonl", {"round": round_} | made.measures.statistics().to_dict())
        return {"totals": made.totals}

    return add_up
