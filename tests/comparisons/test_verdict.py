"""Whether sharing helped: problems whose truth is known, and a recommendation that never costs more than it brings."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import binom, ttest_1samp

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.cli.run import carry_out
from privbo.comparisons.comparison import Comparison, recommend
from privbo.comparisons.sweep import compare
from privbo.comparisons.verdict import AT_THE_END, OVER_ROUNDS, Verdict, verdict_of
from privbo.protocol.files import save_arrays
from privbo.reports.comparison import table
from privbo.reports.diagnostics import diagnostics
from privbo.runs.manifest import RunDirectory
from privbo.runs.spec import Spec
from tests.comparisons.test_compare import ALGORITHM, SMALL, comparison, controls, setting, sweep_of, swept

NOTHING, HELPFUL = 400, 200
MOST_FALSE = int(binom.isf(1e-6, NOTHING, 0.05))  # 45: a test that keeps 5 % exceeds it once in a million


def noises(generator: np.random.Generator, count: int) -> np.ndarray:
    """Clients' differences between two arms: even, of heavy tails, or lopsided; mean 0, standard deviation 1."""
    match generator.integers(3):
        case 0:
            return generator.normal(size=count)
        case 1:
            return generator.standard_t(5, size=count) / np.sqrt(5 / 3)
        case _:
            return 1.0 - generator.exponential(size=count)  # a few large losses: what noise that misleads looks like


def seeds_of(generator: np.random.Generator, n_seeds: int) -> np.ndarray:
    """Differences as a sweep sees them: means over 20 clients."""
    return noises(generator, 20 * n_seeds).reshape(n_seeds, 20).mean(axis=1) * np.sqrt(20)


def played(generator: np.random.Generator, n_settings: int, gain: float, n_seeds: int = 8) -> Comparison:
    """A sweep on a problem: deals of the data differ a lot, settings by ``gain`` standard errors."""
    deals = generator.normal(scale=5.0, size=n_seeds)
    gains = gain / np.sqrt(n_seeds) * (np.arange(n_settings) == 0)
    arms = [deals + own + seeds_of(generator, n_seeds) for own in gains]
    settings = [setting(f"epsilon {index}", arm) for index, arm in enumerate(arms)]
    return comparison(*settings, *controls(deals, deals))


@pytest.mark.parametrize("n_settings", [1, 4])
def test_where_sharing_does_nothing_it_is_called_helpful_in_at_most_one_of_twenty_sweeps(n_settings: int) -> None:
    generator = np.random.default_rng(20)
    sweeps = [played(generator, n_settings, 0.0) for _ in range(NOTHING)]
    false = sum(any(v.answer == "helped" for v in sweep.verdicts()) for sweep in sweeps)
    assert max(false, sum(recommend(sweep, 2.0).label != "alone" for sweep in sweeps)) <= MOST_FALSE


@pytest.mark.parametrize("n_clients", [20, 40, 100])
def test_clients_of_one_run_are_pairs(n_clients: int) -> None:
    generator = np.random.default_rng(22)

    def answers(gains: np.ndarray) -> list[str]:
        found = []
        for gain in gains:
            alone = generator.normal(scale=3.0, size=n_clients)
            sharing = alone + gain / np.sqrt(n_clients) + noises(generator, n_clients)
            found.append(judged(sharing, alone).answer)
        return found

    false, some = answers(np.zeros(NOTHING)).count("helped"), generator.uniform(2.0, 5.0, size=HELPFUL)
    helped = answers(some).count("helped")
    assert false <= MOST_FALSE
    assert helped >= 0.8 * HELPFUL
    assert answers(-some).count("hurt") >= 0.8 * HELPFUL


def judged(sharing: np.ndarray, alone: np.ndarray, noise_only: np.ndarray | None = None, **how: bool) -> Verdict:
    """The verdict where both arms are there and made as many evaluations; noise alone does what clients alone do."""
    as_many = {"evaluations per client": (np.full(len(sharing), 22.0), np.full(len(sharing), 22.0))}
    noise_only = alone if noise_only is None else noise_only
    return verdict_of(sharing, alone, noise_only, as_many, over="seeds", measure="score", **how)


@pytest.mark.parametrize("is_noise_harmful", [True, False])
def test_of_400_null_comparisons_at_most_35_claim_a_gain_and_three_errors_are_found(is_noise_harmful: bool) -> None:
    """Noise alone that is much worse leaves one test to pass; noise alone of its own draws leaves two."""
    generator = np.random.default_rng(35)

    def found(gain: float, comparisons: int, n_seeds: int = 12) -> int:
        deals = generator.normal(scale=5.0, size=(comparisons, n_seeds))
        sharing, alone, noise = deals + generator.normal(scale=np.sqrt(0.5), size=(3, *deals.shape))
        sharing += gain / np.sqrt(n_seeds)  # of two arms the difference has a standard deviation of 1
        noise -= 10.0 * is_noise_harmful
        rows = zip(sharing, alone, noise, strict=True)
        return sum(judged(*row, are_means=True).answer == "helped" for row in rows)

    false, helped = found(0.0, 400), found(3.0, 400)
    assert false <= 35
    assert helped >= 300


def test_a_gain_that_noise_alone_has_too_is_no_difference() -> None:
    """Seen: a private search .6884, its zeroed arm .6884 to all digits, alone .6167: "sharing helped, p = .0024"."""
    sharing, alone = np.array([0.69, 0.68, 0.695]), np.array([0.61, 0.62, 0.62])
    found = judged(sharing, alone, sharing, are_means=True)
    assert (found.answer, found.p_helped) == ("made no difference beyond noise", 1.0)
    assert found.gain == pytest.approx(0.0716667)
    assert "score +0.0717, standard error 0.006, versus the same clients alone; +0, standard error 0" in found.text
    assert judged(sharing, alone, alone, are_means=True).answer == "helped"


def test_without_both_arms_or_as_many_evaluations_there_is_no_verdict() -> None:
    sharing, alone, few = np.array([0.7, 0.71, 0.72]), np.array([0.5, 0.52, 0.53]), np.full(3, 10.0)
    how = {"over": "seeds", "measure": "score", "are_means": True}
    for arms, words in (((None, None), "are missing"), ((alone, None), "around a sum of zeros is missing")):
        found = verdict_of(sharing, *arms, {"evaluations per client": (few, few)}, **how)
        assert (found.answer, found.p_helped, found.p_hurt) == ("is not known to help", None, None)
        assert f'{words}; add controls = ["local", "zeroed"]' in found.text
    for made, words in (((8 * few, few), "80 evaluations per client versus 10 alone"), ((few, None), "was not kept")):
        found = verdict_of(sharing, alone, alone, {"evaluations per client": made}, **how)
        assert (found.answer, found.p_helped) == ("is not known to help", None)
        assert words in found.text


def test_the_mean_over_other_clients_is_no_gain() -> None:
    """Clients that lose every value with sharing left the mean of the others, "helped" and the recommendation."""
    arms = [setting("shares", [0.7, 0.72, 0.71]), *controls([0.1, 0.1, 0.13], [0.1, 0.12, 0.1])]
    assert recommend(comparison(*arms), 2.0).label == "shares"
    late, lost = (np.repeat([counts], 3, axis=0) for counts in ([20.0, 17.0, 20.0], [20.0, 17.0, 14.0]))
    for valued, words in ((lost, "14 clients with a value versus 20 alone"), (late, ""), (None, "was not kept")):
        found = comparison(dataclasses.replace(arms[0], valued=valued), *arms[1:])
        assert words in found.verdicts()[0].because
        assert recommend(found, 2.0).label == ("alone" if words else "shares")
    over_rounds = comparison(dataclasses.replace(arms[0], valued=late), *arms[1:])
    (found,) = dataclasses.replace(over_rounds, measure="mean over rounds").verdicts()
    assert found.because == "19 clients with a value versus 20 alone"


def test_p_is_scipys_and_ties_are_not_certain() -> None:
    gains = np.array([0.1, 0.3, -0.05, 0.2])
    found = judged(gains, np.zeros(4))
    students = ttest_1samp(gains, 0.0, alternative="greater").pvalue  # these differences are lopsided to the left
    assert students < found.p_helped < 1.6 * students
    assert found.p_hurt == pytest.approx(1 - students)
    means = judged(gains, np.zeros(4), are_means=True)
    assert (means.p_helped, means.p_hurt) == pytest.approx((students, 1 - students))
    worse = judged(gains, np.full(4, -0.1), np.zeros(4), are_means=True)  # the larger p of the two
    assert worse.p_helped == pytest.approx(students)
    even = judged(np.array([-0.1, 0.0, 0.1, 0.2]), np.zeros(4))
    assert even.p_helped == pytest.approx(ttest_1samp([-0.1, 0.0, 0.1, 0.2], 0.0, alternative="greater").pvalue)
    ours = np.array([0.7, 0.8, 0.9])
    for theirs in (ours - 0.5, np.array([0.6, 0.7, 0.8])):  # the latter's gains differ by floating-point dust
        equal = judged(ours, theirs)
        assert (equal.p_helped, equal.answer) == (0.125, "made no difference beyond noise")
    for few in (np.array([0.5]), np.array([np.nan])):
        found = judged(few, np.zeros(1))
        assert (found.p_helped, found.answer) == (None, "is not known to help")
        assert ("no seed has a value" if np.isnan(few).all() else "compare several seeds") in found.text


def test_a_larger_gain_is_never_less_certain() -> None:
    """A quadratic correction for lopsidedness (Johnson's) turns round: from some gain on p rises again."""
    lopsided = 1.0 - np.random.default_rng(3).exponential(size=20)
    found = [judged(lopsided + gain, np.zeros(20)).p_helped for gain in np.linspace(0, 3, 40)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-4


def test_of_losses_the_smaller_is_the_better_one() -> None:
    losses = [setting("shares", [0.1, 0.2, 0.15]), *controls([0.5, 0.61, 0.55], [0.51, 0.6, 0.55])]
    found = dataclasses.replace(comparison(*losses), measure="last regret").verdicts()
    assert (found[0].answer, found[0].gain) == ("helped", pytest.approx(0.4033, abs=1e-3))


def test_a_setting_is_held_against_its_own_algorithm_alone_for_as_many_rounds() -> None:
    """Seen by a user: .8 after three rounds stood beside .99 alone after ten, and "sharing hurt"."""
    short = [setting("shares", [0.8, 0.81, 0.82]), *controls([0.7, 0.72, 0.71], [0.7, 0.71, 0.71])]
    long = setting("alone, 10 rounds", [0.99, 0.98, 0.99], 0.0, "local")
    long = dataclasses.replace(long, curves=np.repeat(long.curves[:, :1], 11, axis=1))
    (found,) = comparison(*short, long).verdicts()
    assert (found.alone, found.answer) == ("alone", "helped")
    (found,) = dataclasses.replace(comparison(short[0], long, short[2]), measure="mean over rounds").verdicts()
    assert (found.alone, found.answer) == ("alone, 10 rounds", "is not known to help")
    assert found.because == "2 rounds versus 10 alone"
    best = recommend(comparison(*short, long), 2.0)  # alone with the best engine is free
    assert best.label == "alone, 10 rounds"
    assert "helped" in best.because
    assert "it trails alone, 10 rounds by 0.1767" in best.because


def test_what_is_worse_than_not_sharing_is_never_recommended() -> None:
    """The case that was seen: .608 "beyond noise" was named where not sharing gave .735."""
    sharing = setting("epsilon=4", [0.60, 0.61, 0.614]), setting("epsilon=1", [0.4, 0.41, 0.43])
    worse = comparison(*sharing, *controls([0.73, 0.735, 0.74], [0.3, 0.31, 0.3]))
    found = recommend(worse, 4.0)
    assert (found.label, found.epsilon) == ("alone", 0.0)
    assert "it costs nothing" in found.because
    assert found.verdict.answer == "hurt"
    with pytest.raises(pb.ConfigurationError, match="controls"):
        recommend(comparison(setting("a", [0.5, 0.6])), 2.0)
    several = comparison(*worse.settings, setting("another engine", [0.8, 0.81, 0.83], 0.0, "local"))
    assert recommend(several, 4.0).label == "another engine"
    free = comparison(worse.settings[2])
    assert recommend(free, 4.0).because == "it costs nothing, and no setting shares anything"


class Eager(Zoom):
    """Scores eight candidates a round where its clients alone make one evaluation."""

    def local(self) -> pb.DPFTSDE:
        return pb.DPFTSDE(n_features=8).local()


ARMS = [
    {"label": "search", "algorithm": {"type": "experiments.baselines.private_search:PrivateSearch"}},
    {"label": "zoom", "algorithm": {"type": "experiments.examples.zoom:Zoom"}},
    {"label": "eager", "algorithm": {"type": "tests.comparisons.test_verdict:Eager"}},
    {"label": "another engine", "kind": "local", "algorithm": ALGORITHM},
    {"label": "alone by itself", "algorithm": {"type": "pe", "horizon": 6}},
]


def test_a_sweep_adds_own_arms_each_once_and_praises_nothing_that_they_refute(tmp_path) -> None:
    (found,) = swept(tmp_path, sweep_of(measure="final", base=SMALL | {"algorithm": None}, arms=ARMS)).comparisons
    kinds = {s.label: s.kind for s in found.settings}
    assert kinds.pop("alone by itself") == "local"  # it shares nothing, so it needs no arms
    assert list(kinds) == [
        "search", "zoom", "eager", "another engine", "local only, search", "noise-only control, search",
        "local only, zoom", "noise-only control, zoom", "noise-only control, eager",
    ]  # fmt: skip
    search, zoom, eager = found.verdicts()
    assert (search.answer, search.noise_gain, search.noise_error) == ("made no difference beyond noise", 0.0, 0.0)
    assert (zoom.alone, zoom.answer != "helped") == ("local only, zoom", True)
    assert (eager.alone, eager.answer) == ("another engine", "is not known to help")
    assert eager.because == "24 evaluations per client versus 13 alone"
    assert [row.evaluations for row in found.rows()[:4]] == [12.0, 24.0, 24.0, 13.0]
    assert "evaluations" in table(found).headings
    assert found.to_dict()["settings"][0]["evaluations"] == 12.0
    assert all(s.evaluations is None for s in dataclasses.replace(found, data="private").exportable().settings)
    assert recommend(found, 3.0).epsilon == 0.0


def test_a_run_says_whether_sharing_helped_where_it_is_asked_for(tmp_path) -> None:
    spec = Spec.from_dict(SMALL | {"controls": ["local", "zeroed"]}, trusted=True).loaded()
    quiet = carry_out(spec, tmp_path / "quiet", resume=False, progress=False)
    assert quiet.diagnostics is None
    assert "verdict" not in json.dumps(quiet.to_dict())
    asked = carry_out(spec, tmp_path / "asked", resume=False, progress=False, show_private=True)
    verdicts = asked.diagnostics.verdicts
    assert {(v.alone, v.noise_only) for v in verdicts} == {("local only, nothing shared", "noise-only control")}
    assert [v.measure for v in verdicts] == [OVER_ROUNDS, AT_THE_END]
    assert {v.pairs for v in verdicts} == {6}
    assert asked.to_dict()["private_diagnostics"]["verdicts"][0]["answer"] == verdicts[0].answer
    assert diagnostics(RunDirectory(tmp_path / "asked")).verdicts == verdicts
    ours = pb.load(tmp_path / "asked").clients.values.max(axis=1)
    local = tmp_path / "asked" / "private" / "control-local.npz"
    assert verdicts[1].gain == pytest.approx(float((ours - np.load(local)["values"].max(axis=1)).mean()))
    curves = asked.diagnostics.mean_best_score
    shared, alone = (np.array(curves[arm][1:]) for arm in ("this run", "local only, nothing shared"))
    assert verdicts[0].gain == pytest.approx(float((shared - alone).mean()))  # nobody failed
    side_by_side = compare([tmp_path / "asked"], data="simulated")
    assert [s.kind for s in side_by_side.settings] == ["private", "local", "zeroed"]
    assert [row.evaluations for row in side_by_side.rows()] == [13.0] * 3
    assert recommend(side_by_side, 3.0).label == "local only"  # one seed says nothing about noise
    assert side_by_side.to_dict()["verdicts"][0]["because"].endswith("compare several seeds")
    assert compare([tmp_path / "asked"]).exportable().to_dict()["verdicts"] == []
    arrays = dict(np.load(local))
    save_arrays(local, arrays | {"values": np.where(np.arange(6)[:, None] < 2, np.nan, arrays["values"])})
    (_, lost) = diagnostics(RunDirectory(tmp_path / "asked")).verdicts
    assert lost.because == "6 clients with a value versus 4 alone"
    for path in local.parent.glob("control-*.npz"):
        path.unlink()
    (alone,) = compare([tmp_path / "asked"], data="simulated").verdicts()
    assert 'are missing; add controls = ["local", "zeroed"]' in alone.text
    assert "go on with it first: privbo run --resume" in diagnostics(RunDirectory(tmp_path / "asked")).verdicts[0].text
