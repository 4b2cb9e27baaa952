"""Every kind of event through its whole protocol: nothing that an accountant asks of an event may be missing.

A new kind needs a line in ``EXAMPLES``, and a second implementation in ``accountant.verify``.
"""

from __future__ import annotations

import numpy as np
import pytest

from accountant import numerical
from accountant.dp_event import dp_event_expression, from_dp_event, to_dp_event
from accountant.errors import EventError
from accountant.events import Adjacency, Basic, compose, from_dict, of_group, of_seen_samples, to_dict
from accountant.verify import events as read
from accountant.verify.lower.ends import lower_epsilon
from tests.accountant.builders import EXAMPLES

WITHOUT_PAIR = {"zero-concentrated", "best-of-random-runs", "non-private"}
WITHOUT_GROUP = {
    "fixed-size-sampled-gaussian",
    "truncated-poisson-sampled-gaussian",
    "random-allocation-gaussian",
    "poisson-sampled-laplace",
}
OPEN = {"gaussian", "laplace", "mixture-of-gaussians", "zero-concentrated", "non-private"}  # no sample to see
ZERO = Adjacency.ZERO_OUT


def parts_missing(kind: str) -> list[str]:
    """Parts of the protocol that a kind lacks, or answers wrongly."""
    event = EXAMPLES[kind]
    orders = np.array([1.5, 4.0, 32.0])
    curve = event.renyi_curve(orders, ZERO)
    pairs = [pair for part, _ in event.blocks() for pair in part.pairs(ZERO)]
    checks = {
        "stored form": kind == event.kind == to_dict(event)["type"] and from_dict(to_dict(event)) == event,
        "words": bool(event.text) and bool(event.sampler) and "{" not in event.text + event.sampler,
        "dominating pair": (not pairs) == (kind in WITHOUT_PAIR),
        "Rényi curve": curve.shape == orders.shape and bool(np.all(curve > 0.0)),
        "lower end": lower_end(event) <= numerical.epsilon(event, 1e-5, adjacency=ZERO),
        "group": (event.for_group(2, ZERO) is None) == (kind in WITHOUT_GROUP),
        "seen samples": (event.seen_samples() == (event, 1)) == (kind in OPEN),
        "DpEvent": "DpEvent" in dp_event_expression(event, adjacency=ZERO),
    }
    return [name for name, holds in checks.items() if not holds]


def lower_end(event: Basic) -> float:
    paid = read.composed(read.parts_of(to_dict(event)))
    assert [type(part).__name__ for part, _ in paid.parts] == [type(event).__name__]
    return lower_epsilon(paid, 1e-5, read.Adjacency.ZERO_OUT)


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == Basic.kinds.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_answers_the_whole_protocol(kind: str) -> None:
    assert parts_missing(kind) == []


@pytest.mark.parametrize("kind", EXAMPLES)
def test_more_is_known_of_more(kind: str) -> None:
    """A group costs no less than one unit, and a seen sample no less than a hidden one."""
    event = EXAMPLES[kind]
    alone = numerical.epsilon(event, 1e-5, adjacency=ZERO)
    assert numerical.epsilon(of_seen_samples(event), 1e-5, adjacency=ZERO) >= alone
    if kind in WITHOUT_GROUP:
        with pytest.raises(EventError, match="nothing tight is proven"):
            of_group(event, 2, adjacency=ZERO)
    else:
        assert numerical.epsilon(of_group(event, 2, adjacency=ZERO), 1e-5, adjacency=ZERO) >= alone


@pytest.mark.parametrize("kind", EXAMPLES)
def test_dp_accounting_reads_what_is_written(kind: str) -> None:
    event = EXAMPLES[kind]
    if kind == "random-allocation-gaussian":
        with pytest.raises(EventError, match="has no event"):
            to_dp_event(event, adjacency=ZERO)
        return
    assert from_dp_event(to_dp_event(event, adjacency=ZERO), adjacency=ZERO) == compose([event])
