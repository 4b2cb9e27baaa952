"""Tables of the families that were set aside: what is met, who loses, and that nothing is left out."""

import pytest

import privbo as pb
from experiments.families_page import AIMS, again
from experiments.played import Entry, Played, kept
from experiments.problems.client_families import FAMILIES
from experiments.statistics import Estimate, losing
from experiments.study import study

SEEDS = (0, 1, 2, 3)


def entry(series, at, ending, epsilon=None, *, zeroed=False, worse=0.2):
    means = tuple(at + shift for shift in (-0.001, 0.001, -0.002, 0.002))
    ends = tuple(ending + shift for shift in (-0.001, 0.001, -0.002, 0.002))
    alone = series == "alone"
    return Entry(
        series=series, epsilon=epsilon, zeroed=zeroed, seeds=SEEDS, mean=means, end=ends,
        worse=None if alone else worse, decile=None if alone else 1.2,
    )  # fmt: skip


def played(title, factor):
    """A family on which the default has so much of the regret alone, and noise only the same as alone."""
    entries = {
        "worse start": entry("alone", 0.3, 0.2),
        "alone": entry("alone", 0.2, 0.1),
        "not private": entry("default", 0.2 * factor, 0.1 * factor),
        "two": entry("default", 0.2 * factor, 0.1, 2.0),
        "one": entry("default", 0.19, 0.1, 1.0, worse=0.4),
        "two, noise only": entry("default", 0.2, 0.1, 2.0, zeroed=True),
        "one, noise only": entry("default", 0.2, 0.1, 1.0, zeroed=True),
    }
    return Played(title=title, purpose="reporting", n_clients=40, correlation=0.9, is_model=False, entries=entries)


def line(text, start):
    return next(one for one in text.splitlines() if one.startswith(start))


def test_aims_are_held_against_geometric_means_over_families():
    seen = again(kept([played("forest", 0.5), played("irrigation", 0.9), played("milling", 1.3)]))
    means = seen.text.partition("**Over families**")[2]
    # (0.5 * 0.9 * 1.3)^(1/3) = .836; one family of three is shown to lose, and it is the largest.
    assert line(means, "| not private | 3 | 0.836").count("missed") == 1
    assert "1.30 (milling) | 1 |" in line(means, "| not private")
    assert "0.950" in line(means, "| epsilon 1")
    assert line(means, "| noise only, 2").count("met") == 2
    assert "40 %" in line(seen.text, "| epsilon 1 | 40 %")
    assert "| steps | 2 | 0.67 / 0.67 |" in seen.text
    assert "| cliffs | 1 | 1.30 / 1.30 |" in seen.text
    assert (
        "| milling | cliffs | 0.90 | 1.30 (0.00) / 1.00 (0.00); 20 % | 0.95 (0.00) / 1.00 (0.00); 40 % |" in seen.text
    )
    assert "0.200 / 0.100 |" in line(seen.text, "| milling")
    by_family = seen.text.partition("**By family**")[2]
    assert "| correlation | epsilon 2 | epsilon 1 | regret of the best alone |" in by_family


def test_losses_are_counted_by_holm():
    """Three families at p = .02 each are no finding; two of four certain ones are two."""
    unsure = Estimate(1.28, 0.1, 5)
    assert losing([unsure]) == 1
    assert losing([unsure] * 3) == 0
    sure, none = Estimate(1.5, 0.001, 5), Estimate(0.5, 0.001, 5)
    assert losing([sure, none, sure, none]) == 2


def test_an_arm_that_is_missing_is_named():
    family = played("forest", 0.5)
    del family.entries["one"]
    with pytest.raises(pb.ConfigurationError, match="'epsilon 1' was not played"):
        again(kept([family]))


def test_the_study_plays_every_family_at_every_aim():
    chosen = study("client-families", "paper")
    assert [panel.title for panel in chosen.panels] == list(FAMILIES)
    for panel in chosen.panels:
        arms = {(arm.x, arm.control == "zeroed") for arm in panel.arms if arm.series == "default"}
        assert arms == {(aim.epsilon, aim.zeroed) for aim in AIMS}
        assert sum(arm.series == "alone" for arm in panel.arms) == 4
