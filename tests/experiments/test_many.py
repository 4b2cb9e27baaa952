"""The leaderboard of many evaluations: families set aside by digest, and its player."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.outcome import make
from experiments.plays.many import play
from experiments.study import study
from tests.experiments.worlds import process, task as cell

STUDY = study("many-evaluations", "paper")
ASIDE = Path(__file__).parents[2] / "experiments/problems/set_aside.json"


def digest(panel) -> str:
    """Of what clients of the first seed are worth at 512 points, rounded to a millionth."""
    probes = make(panel.arms[0].problem, 0).probes
    return hashlib.sha256(np.round(probes, 6).tobytes()).hexdigest()[:16]


def test_half_of_the_families_were_set_aside_and_are_what_they_were():
    kept, aside = json.loads(ASIDE.read_text()), [one for one in STUDY.panels if one.purpose == "reporting"]
    assert len(aside) == len(STUDY.panels) / 2 == 8
    assert {panel.title: digest(panel) for panel in aside} == kept


def task(algorithm, **options):
    options = {"width": 0.3, "horizon": 300} | options
    return cell(process(4, correlation=0.5), algorithm, rounds=20, seed=0, options=options)


def test_local_and_global_regret_differ_by_what_no_algorithm_changes():
    """By the clients' own best points less the best common one, as long as nobody's regret is below the floor."""
    found = [play(task(one)) for one in (pb.FedPNE(), pb.ParallelXArmed())]
    assert min(min(one.curves["mean by client"]) for one in found) > 0.01
    apart = [one.figures["mean"] - one.figures["global"] for one in found]
    assert apart[0] == pytest.approx(apart[1], abs=1e-9)
    assert apart[0] > 0.0
    assert all(one.figures["common"] >= 0.01 for one in found)
    assert found[0].figures["mean"] != found[1].figures["mean"]


def test_what_is_left_of_the_horizon_is_spent_at_the_point_of_the_end():
    """Twenty-two points of ten evaluations each, and 80 more."""
    short, long = (play(task(pb.SharedPrior().local(), each=10, horizon=n)) for n in (220, 300))
    mean, end, later = (np.array(curve) for curve in (*short.curves.values(), long.curves["mean by client"]))
    exact = end > 0.01  # of the others the regret at the end is known to be below the floor
    assert exact.any()
    np.testing.assert_allclose(later[exact], ((220 * mean + 80 * end) / 300)[exact], atol=2e-5)
    assert (later <= (220 * mean + 80 * end) / 300 + 2e-5).all()
    with pytest.raises(pb.ConfigurationError, match="a client made 220 evaluations, 200 are allowed"):
        play(task(pb.SharedPrior().local(), each=10, horizon=200))


def test_a_cell_without_an_algorithm_is_refused():
    with pytest.raises(pb.ConfigurationError, match="names none"):
        play(task(None))
