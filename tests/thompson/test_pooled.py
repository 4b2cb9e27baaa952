"""The common function is what released numbers say of it: by exact posteriors, and noise alone seldom says anything."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import multivariate_normal

import privbo as pb
from privbo.algorithms.thompson import pooled
from privbo.algorithms.thompson.exploration import first_points
from privbo.algorithms.thompson.features import correlated
from privbo.algorithms.thompson.pooled import (
    _SHARES,
    Answers,
    Decoder,
    _over_the_space,
    _stands_out,
    decode,
    function_of,
    public_points,
)
from tests.thompson.conftest import FINITE, MIXED, PLANE, answered, machine_code, setting

ALGORITHM = pb.SharedPrior()
SIX = pb.Space({name: pb.Real(0.0, 1.0) for name in "abcdef"})


def decoder(where):
    return Decoder(ALGORITHM, where, ALGORITHM.draw_features(where))


def drawn(rng, prior, count):
    variances, directions = np.linalg.eigh(prior)
    return rng.standard_normal((count, len(prior))) @ (directions * np.sqrt(np.maximum(variances, 0.0))).T


def laws(rng, k=2, m=6, seen=4):
    """Random priors and answers."""
    roots = (size * rng.standard_normal((k, width, width)) for size, width in ((1.0, m), (0.6, seen), (0.3, seen)))
    priors, owns, noises = (root @ root.swapaxes(1, 2) for root in roots)
    return priors, Answers(matrices=rng.standard_normal((k, seen, m)), owns=owns, rests=noises + 0.05 * np.eye(seen))


def exactly(weights, priors, answers):
    """Mean and covariance by Bayes' rule, law by law and share by share, from dense joint covariances."""
    evidence, means, squares = [], [], []
    for prior, matrix, own, rest in zip(priors, answers.matrices, answers.owns, answers.rests, strict=True):
        for share in _SHARES:
            covariance = share * matrix @ prior @ matrix.T + (1 - share) * own + rest
            gain = share * prior @ matrix.T @ np.linalg.inv(covariance)
            evidence.append(multivariate_normal(cov=covariance).logpdf(weights))
            means.append(gain @ weights)
            squares.append(share * prior - gain @ matrix @ prior * share + np.outer(means[-1], means[-1]))
    likely = softmax(evidence)
    mean = likely @ np.array(means)
    return mean, np.tensordot(likely, squares, axes=1) - np.outer(mean, mean)


@pytest.mark.parametrize("seed", range(5))
def test_decoding_is_bayes_rule(seed):
    """Planted: a decoder that takes the noise for half of what it is, clients for equal, or the laws for one, does not
    find the same."""
    rng = np.random.default_rng(seed)
    priors, answers = laws(rng)
    weights = 2.0 * rng.standard_normal(4)
    for found, right in zip(decode(weights, priors, answers), exactly(weights, priors, answers), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-8, atol=1e-10)
    one = Answers(matrices=answers.matrices[:1], owns=answers.owns[:1], rests=answers.rests[:1])
    for wrong in (
        (priors, dataclasses.replace(answers, rests=0.5 * answers.rests)),
        (priors, dataclasses.replace(answers, owns=np.zeros((2, 4, 4)))),
        (priors[:1], one),
    ):
        assert not np.allclose(decode(weights, *wrong)[1], exactly(weights, priors, answers)[1], rtol=0.01)


def test_several_answers_are_weighed_and_shared_by_clients():
    """Of two releases, and of five clients under noise; planted: noise that is not squared."""
    _, first = laws(np.random.default_rng(0))
    _, second = laws(np.random.default_rng(1))
    mean = Answers.mean([first, second], np.array([1.0, 3.0])).of(5, 0.2)
    np.testing.assert_allclose(mean.matrices, 0.25 * first.matrices + 0.75 * second.matrices)
    np.testing.assert_allclose(mean.owns, (0.25 * first.owns + 0.75 * second.owns) / 5)
    rests = (0.25 * first.rests + 0.75 * second.rests) / 5
    np.testing.assert_allclose(mean.rests, rests + 0.04 * np.eye(4), atol=1e-8)
    assert not np.allclose(mean.rests, rests + 0.2 * np.eye(4), atol=1e-8)


@pytest.mark.parametrize(("space", "n_points"), [(PLANE, 48), (MIXED, 72), (FINITE, 10), (SIX, 128)])
def test_priors_are_of_mean_zero_and_variance_one(space, n_points):
    made = decoder(setting(space))
    assert len(made.priors) == (3 if space in (PLANE, SIX) else 6)
    assert len(made.points) == n_points
    for prior in made.priors:
        assert np.trace(prior) == pytest.approx(len(prior))
        np.testing.assert_allclose(prior.sum(axis=0), 0.0, atol=1e-9)
    apart = [prior[0] @ prior[-1] for prior in made.priors]
    assert len(np.unique(np.round(apart, 6))) == len(apart)  # no two of them say the same


def first_answers(where):
    """A decoder, clients' first points, and the map from a function at the public points to its values there."""
    made = decoder(where)
    units = first_points(where, np.arange(where.n_clients), 4)[:, :3]
    between = correlated("matern52", torch.as_tensor(where.space.embed(units)), made.points, made._between).numpy()
    return made, units, between @ made._inverse


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_first_answers_are_known_client_by_client(space, share):
    """600 federations of forty clients, whose surfaces have this share in common, answer at their own first points.

    What B u leaves of their mean has the stated variance within a tenth where little is common (its chance error is
    under .02). Planted: B on average over uniform points, as of later answers, leaves far more where most is.
    """
    made, units, between = first_answers(setting(space, n_clients=40, rounds=20))
    averaged, found = decoder(setting(space, n_clients=10**6, rounds=20)), made.answers(3)
    rng, count = np.random.default_rng(2), 600
    which = 1 if space is PLANE else 2
    common = drawn(rng, made.priors[which], count)
    own = drawn(rng, made.priors[which], count * 40).reshape(count, 40, -1)
    left, stated = np.zeros(2), np.zeros(2)
    for together, apart in zip(np.sqrt(share) * common, np.sqrt(1 - share) * own, strict=True):
        values = (between @ (together + apart)[..., None])[..., 0]
        mean = answered(made._features, space, units, values).mean(axis=0)
        for i, answers in enumerate((found, averaged.answers(3))):
            left[i] += np.square(mean - answers.matrices[which] @ together).sum()
            stated[i] += np.trace(((1 - share) * answers.owns + answers.rests)[which]) / 40
    if share < 0.5:
        assert left[0] == pytest.approx(stated[0], rel=0.1)
    else:
        assert left[0] < 0.7 * left[1]


def test_a_secret_sample_of_the_clients_adds_what_it_leaves_out():
    """3,000 samples of a quarter of forty clients. Planted: the law of all of them states less than half of it."""
    made, units, between = first_answers(setting(PLANE, n_clients=40, rounds=20))
    rng, law, left = np.random.default_rng(2), made.answers(3), 0.0
    for _ in range(3000):
        together = np.sqrt(0.2) * drawn(rng, made.priors[1], 1)[0]
        apart = np.sqrt(0.8) * drawn(rng, made.priors[1], 40)
        answers = answered(made._features, PLANE, units, (between @ (together + apart)[..., None])[..., 0])
        mean = answers[rng.random(40) < 0.25].sum(axis=0) / 10
        left += np.square(mean - law.matrices[1] @ together).sum() / 3000
    stated = [np.trace((0.8 * one.owns + one.rests)[1]) for one in (law.of(40, 0.0, 0.25), law.of(40, 0.0))]
    assert left == pytest.approx(stated[0], rel=0.1)
    assert stated[1] < 0.5 * left


@pytest.mark.parametrize(("n_clients", "n_points"), [(40, 3), (512, 3), (40, 7)])
def test_what_answers_are_worth_does_not_hang_on_the_public_seed(n_clients, n_points):
    """B's size over eight public seeds: a slope from few functions, planted, strays by a seventh."""

    def size(seed):
        made = decoder(setting(PLANE, n_clients=n_clients, rounds=20, public_seed=seed))
        return np.log(np.linalg.norm(made.answers(n_points).matrices[1] @ made._roots[1]))

    assert np.std([size(seed) for seed in range(8)]) < 0.05


def test_later_answers_and_those_of_many_clients_are_not_known():
    """A pool that leads lets clients leave the exploring start after round 1; a short run has none."""
    assert decoder(setting(PLANE, n_clients=512, rounds=20)).answers(3).owns.any()
    assert not decoder(setting(PLANE, n_clients=513, rounds=20)).answers(3).owns.any()
    assert not decoder(setting(PLANE, n_clients=40, rounds=20)).answers(4).owns.any()
    assert not decoder(setting(PLANE, n_clients=40, rounds=20)).answers(7).owns.any()
    assert not decoder(setting(PLANE, n_clients=40, rounds=3)).answers(3).owns.any()


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_function_is_what_was_decoded(space, noise):
    """Of mean 0 over the public points, with the mean that was decoded there and the largest part of the variance."""
    made = decoder(setting(space, n_clients=40))
    answers = made.answers(3)
    weights = (50.0 if noise else 1.0) * answers.matrices[0] @ drawn(np.random.default_rng(0), made.priors[0], 1)[0]
    found = made.pool(weights, noise, 2)
    mean, covariance = decode(weights, made.priors, answers.of(40, noise))
    shift = pooled.public_stream(11, pooled.Stream.FEATURES, 3).random(space.n_dims)
    units = pooled.spread(space, 24 * space.n_dims, shift)
    heights, uncertainty = (part[0].numpy() for part in found.function(units[None]))
    np.testing.assert_allclose(heights, mean, atol=0.02 * np.abs(mean).max())
    assert abs(heights.mean()) < 1e-3 * np.abs(mean).max()
    assert found.width == uncertainty.shape[1] <= 16
    kept = np.square(uncertainty).sum() / np.trace(covariance)
    assert 0.6 < kept < 1.0 + 1e-3
    public = public_points(setting(space))
    heights, uncertainty = (part[0].numpy() for part in found.function(public[None]))
    held = np.mean(heights**2 + np.square(uncertainty).sum(axis=1))
    assert found.rest == pytest.approx(max(0.1, 1.0 - held))


@pytest.mark.parametrize("count", [1, 3])
def test_moments_are_those_of_the_functions(count):
    """One compiled pass, and that of a GPU, against the functions themselves; at points of all clients, and of each."""
    rng = np.random.default_rng(1)
    found = decoder(setting(MIXED)).pool(rng.standard_normal(64), 0.0, 2)
    points, known = MIXED.snap(rng.random((count, 70, MIXED.n_dims))), torch.as_tensor(rng.standard_normal((3, 5, 16)))
    expected, uncertainty = found.function(points)
    for used in (True, False):
        with machine_code(used=used):
            moments = found.moments(points, known)
        for one, other in zip(moments, (expected, uncertainty.square().sum(-1), known @ uncertainty.mT), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
def test_noise_alone_is_taken_for_a_signal_once_in_twenty_and_a_signal_always(space):
    """40,000 pools; six standard errors are .0065, and the chi-square is within .0015 here.

    The planted fault, the quantile of a normal variable, lets .067 to .069 through. A pool has a function if its gate
    opens: one that opens for one in twelve opens for more than 15 % of 600 once in 10^7 runs.
    """
    features, where = ALGORITHM.draw_features(setting(space)), setting(space)
    noise, covariance = np.random.default_rng(6).standard_normal((40_000, 64)), _over_the_space(features, where)
    assert np.mean([_stands_out(covariance, 0.3 * row, 0.3) for row in noise]) == pytest.approx(0.05, abs=0.008)
    opened = [[function_of(features, where, size * row, 1.0) is not None for row in noise[:600]] for size in (1.0, 6.0)]
    assert np.mean(opened[0]) < 0.15
    assert np.mean(opened[1]) > (0.98 if space is FINITE else 0.99)


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
def test_at_the_least_signal_the_pool_of_alike_clients_still_knows_something(space):
    """300 functions that twelve clients have in common, as the first of two releases shows them.

    Expected values' mean correlation with them is a third at the least signal, .03 being its chance error, and of noise
    alone, planted, none.
    """
    where, rng, n = setting(space, n_clients=12, rounds=20), np.random.default_rng(3), 12
    made, units, between = first_answers(where)
    stddev = math.sqrt(2.0) / (ALGORITHM.least_signal_to_noise(where) * 8.0)  # of the mean, M = 64
    found = []
    for common in drawn(rng, made.priors[1], 300):
        mean = answered(made._features, space, units, between @ common).mean(axis=0)
        noise = stddev * rng.standard_normal(64)
        law = made.answers(3).of(n, stddev)
        decoded = [decode(weights, made.priors, law)[0] for weights in (mean + noise, noise)]
        found.append([np.corrcoef(one, common)[0, 1] for one in decoded])
    signal, chance = np.mean(found, axis=0)
    assert signal > 0.33
    assert abs(chance) < 0.15


def test_a_pool_is_decoded_once_and_a_new_one_anew():
    made, rng = decoder(setting(PLANE, rounds=8)), np.random.default_rng(0)
    weights = rng.standard_normal(64)
    first = made.pool(weights, 0.1, 2)
    assert made.pool(weights.copy(), 0.1, 5) is first  # the same release is inside
    for again in (made.pool(weights, 0.1, 6), made.pool(weights, 0.2, 6), made.pool(2 * weights, 0.2, 6)):
        assert again is not first
