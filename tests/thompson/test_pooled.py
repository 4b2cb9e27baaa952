"""The common function is what released numbers say of it: by exact posteriors, and noise alone seldom says anything."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import multivariate_normal

import privbo as pb
from privbo.algorithms.thompson import pooled
from privbo.algorithms.thompson.evaluations import without_minima
from privbo.algorithms.thompson.features import correlated
from privbo.algorithms.thompson.pooled import _SHARES, Decoder, _stands_out, decode, function_of, public_points
from privbo.algorithms.thompson.posterior import ridge_mean
from privbo.algorithms.thompson.shared_prior import SharedPrior
from tests.thompson.conftest import FINITE, MIXED, PLANE, machine_code, setting

ALGORITHM = SharedPrior()


def decoder(where, algorithm=None, noise=None):
    """Of a run whose only release would have this noise multiplier; None for one without privacy."""
    algorithm = ALGORITHM if algorithm is None else algorithm
    where = where if noise is None else dataclasses.replace(where, is_exact=noise == 0.0)
    return Decoder(algorithm, where, algorithm.draw_features(where))


def drawn(rng, prior, count):
    variances, directions = np.linalg.eigh(prior)
    return rng.standard_normal((count, len(prior))) @ (directions * np.sqrt(np.maximum(variances, 0.0))).T


def laws(rng, k=2, m=6, seen=4):
    """Random priors, answers and noises."""
    roots = rng.standard_normal((k, m, m)), 0.3 * rng.standard_normal((k, seen, seen))
    priors, noises = (root @ root.swapaxes(1, 2) for root in roots)
    return priors, rng.standard_normal((k, seen, m)), noises + 0.05 * np.eye(seen)


def exactly(weights, priors, matrices, noises):
    """Mean and covariance by Bayes' rule, law by law and share by share, from dense joint covariances."""
    evidence, means, squares = [], [], []
    for prior, matrix, noise in zip(priors, matrices, noises, strict=True):
        for share in _SHARES:
            covariance = share * matrix @ prior @ matrix.T + noise
            gain = share * prior @ matrix.T @ np.linalg.inv(covariance)
            evidence.append(multivariate_normal(cov=covariance).logpdf(weights))
            means.append(gain @ weights)
            squares.append(share * prior - gain @ matrix @ prior * share + np.outer(means[-1], means[-1]))
    likely = softmax(evidence)
    mean = likely @ np.array(means)
    return mean, np.tensordot(likely, squares, axes=1) - np.outer(mean, mean)


@pytest.mark.parametrize("seed", range(5))
def test_decoding_is_bayes_rule(seed):
    """Planted: a decoder that takes the noise for half of what it is, or the laws for one, does not find the same."""
    rng = np.random.default_rng(seed)
    known = laws(rng)
    weights = 2.0 * rng.standard_normal(4)
    for found, right in zip(decode(weights, *known), exactly(weights, *known), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-8, atol=1e-10)
    priors, matrices, noises = known
    for wrong in ((priors, matrices, 0.5 * noises), tuple(part[:1] for part in known)):
        assert not np.allclose(decode(weights, *wrong)[1], exactly(weights, *known)[1], rtol=0.01)


def test_what_is_uncertain_is_what_was_missed():
    """1,500 common functions of a prior of the decoder, seen through answers and noise.

    What is missed along eight directions has the stated variance within a quarter over all of them (six standard errors
    of a mean of 1,500 squares are .22), and planted, three times the noise, does not.
    """
    rng, made = np.random.default_rng(2), decoder(setting(PLANE, n_clients=10**6))
    (matrix,), (prior,) = made.answers(4)[0][1:2], made.priors[1:2]
    noise = 0.02
    known = prior[None], matrix[None], noise**2 * np.eye(64)[None]
    along = np.linalg.eigh(prior)[1][:, -8:]
    shares = rng.choice(_SHARES, (1500, 1))
    functions = np.sqrt(shares) * drawn(rng, prior, 1500)

    def missed(stddev):
        errors, stated = np.zeros(8), np.zeros(8)
        for common in functions:
            mean, covariance = decode(matrix @ common + stddev * rng.standard_normal(64), *known)
            errors += np.square((common - mean) @ along)
            stated += np.einsum("ia,ij,ja->a", along, covariance, along)
        return errors, stated

    errors, stated = missed(noise)
    assert errors == pytest.approx(stated, rel=0.25)
    errors, stated = missed(3 * noise)
    assert errors != pytest.approx(stated, rel=0.25)


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
def test_priors_are_of_mean_zero_and_variance_one(space):
    made = decoder(setting(space))
    assert len(made.priors) == (3 if space is PLANE else 6)
    assert len(made.points) == (10 if space is FINITE else 128)
    for prior in made.priors:
        assert np.trace(prior) == pytest.approx(len(prior))
        np.testing.assert_allclose(prior.sum(axis=0), 0.0, atol=1e-9)
    apart = [prior[0] @ prior[-1] for prior in made.priors]
    assert len(np.unique(np.round(apart, 6))) == len(apart)  # no two of them say the same


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_answers_are_what_clients_make_of_the_common_function(space, noise):
    """1,500 functions drawn at the public points and at four points of each of four clients, jointly.

    Answers are regressed on B u: a slope of 1 within a tenth, where chance in 6,000 answers is about .02; their squares
    are as stated within a tenth. Planted: the features of u itself are not what clients answer with.
    """
    where = setting(space)
    made, rng, count = decoder(where, noise=noise), np.random.default_rng(1), 1500
    scale = made._scale(0.7, 0.6)
    which = 1 if space is PLANE else 2
    units = space.snap(rng.random((count, 16, space.n_dims)))
    embedded = torch.as_tensor(space.embed(units))
    near = correlated("matern52", torch.as_tensor(made.points), made.points, scale).numpy()
    variance = np.trace(near - near.mean(axis=0) - near.mean(axis=1)[:, None] + near.mean()) / len(near)
    root = np.linalg.cholesky(near + 1e-9 * np.eye(len(near)))
    white = rng.standard_normal((count, len(near)))
    common, values = white @ root.T, np.empty((count, 16))
    across = np.linalg.solve(root, correlated("matern52", embedded, made.points, scale).numpy().swapaxes(1, 2))
    for row in range(count):
        here = correlated("matern52", embedded[row], embedded[row].numpy(), scale).numpy()
        rest = here - across[row].T @ across[row] + 1e-9 * np.eye(16)
        values[row] = across[row].T @ white[row] + np.linalg.cholesky(rest) @ rng.standard_normal(16)
    functions = (common - common.mean(axis=1, keepdims=True)) / np.sqrt(variance)
    phi = made._features(embedded.reshape(-1, 4, embedded.shape[-1]))
    standard = without_minima(values.reshape(-1, 4), np.ones((4 * count, 4), dtype=bool))
    answers = ridge_mean(phi, torch.as_tensor(standard), 0.1).numpy()
    norms = np.linalg.norm(answers, axis=1, keepdims=True)
    answers = answers / np.maximum(norms, 1.0) if noise else answers
    matrices, squares = made.answers(4)
    expected = np.repeat(functions @ matrices[which].T, 4, axis=0)
    assert (answers * expected).sum() / np.square(expected).sum() == pytest.approx(1.0, abs=0.1)
    assert np.trace(squares[which]) == pytest.approx(np.square(answers).sum(axis=1).mean(), rel=0.1)
    plain = np.linalg.lstsq(made._features(torch.as_tensor(made.points)).numpy(), functions.T, rcond=None)[0].T
    plain = np.repeat(plain, 4, axis=0)
    assert (answers * plain).sum() / np.square(plain).sum() < 0.7


def test_answers_know_whether_they_are_clipped():
    """Without privacy nothing is: answers of two points are longer than S. A decoder that thinks them clipped finds in
    unlike clients much in common."""
    norms = [np.sqrt(np.trace(decoder(setting(PLANE), noise=noise).answers(2)[1][0])) for noise in (0.0, 0.1)]
    assert norms[0] > 1.2
    assert norms[1] <= 1.0 + 1e-9


def test_many_clients_say_more_than_few():
    """Their differences are noise too: the mean of six unlike clients is that large, and the mean of 4,000 is not."""
    few, many = (decoder(setting(PLANE, n_clients=n)) for n in (6, 4000))
    weights = np.random.default_rng(0).multivariate_normal(np.zeros(64), few.answers(3)[1][1] / 6, 20)
    rests = [np.mean([made.pool(row, 0.0, 2).rest for row in weights]) for made in (few, many)]
    assert rests[0] > rests[1] + 0.1


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_function_is_what_was_decoded(space, noise):
    """Of mean 0 over the public points, with the mean that was decoded there and the largest part of the variance."""
    made = decoder(setting(space, n_clients=40))
    matrices, squares = made.answers(3)
    weights = (50.0 if noise else 1.0) * matrices[0] @ drawn(np.random.default_rng(0), made.priors[0], 1)[0]
    found = made.pool(weights, noise, 2)
    mean, covariance = decode(weights, made.priors, matrices, (noise**2 + 1e-9) * np.eye(64) + squares / 40)
    units = pooled.spread(space, 128, pooled.public_stream(11, pooled.Stream.FEATURES, 3).random(space.n_dims))
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


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
def test_noise_alone_seldom_looks_like_a_signal_and_a_signal_does(space):
    """600 draws of pure noise: a gate that opens for one in twelve opens for more than 15 % once in 10^7 runs.

    The planted fault, a gate that forgets the noise, opens always.
    """
    where, rng = setting(space), np.random.default_rng(5)
    features, made = SharedPrior().draw_features(where), decoder(where)
    noise = rng.standard_normal((600, 64))
    opened = [function_of(features, where, row, 1.0) is not None for row in noise]
    assert np.mean(opened) < 0.15
    assert [made.pool(row, 1.0, 2) is not None for row in noise[:100]] == opened[:100]
    assert all(made.pool(row, 1e-3, 2) is not None for row in noise[:20])
    assert np.mean([function_of(features, where, 6.0 * row, 1.0) is not None for row in noise]) > 0.99


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
def test_noise_alone_is_taken_for_a_signal_once_in_twenty(space):
    """40,000 pools; six standard errors are .0065, and the chi-square is within .0015 here.

    The planted fault, the quantile of a normal variable, lets .067 to .069 through.
    """
    covariance = decoder(setting(space))._spread
    noise = 0.3 * np.random.default_rng(6).standard_normal((40_000, 64))
    opened = np.mean([_stands_out(covariance, row, 0.3) for row in noise])
    assert opened == pytest.approx(0.05, abs=0.008)


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
def test_the_least_signal_of_a_late_release_parts_what_is_heard_from_what_drowns(space):
    """1,000 means of twelve clients' answers to a function that all of them have, each at seven points of its own.

    At epsilon 2 they stand out in .66 to .75 of the cases, at epsilon 1 in .24 to .34; a share's standard error is
    .016. The planted faults, the limit of two releases or none, put both on one side. M says nothing.
    """
    rng, count, n, t, heard = np.random.default_rng(3), 1000, 12, 7, {}
    few = pb.Problem(space=space, objective=lambda client, params: 0.0, n_clients=n)
    for n_features in (16, 64):
        late = SharedPrior(schedule=(5,), n_features=n_features, release_when="always")
        where = setting(space, n_clients=n, rounds=20)
        made = decoder(where, late)
        which = rng.integers(len(made.priors), size=count)
        functions = np.concatenate([drawn(rng, made.priors[k], 1) for k in which])
        embedded = torch.as_tensor(space.embed(space.snap(rng.random((count * n, t, space.n_dims)))))
        between = correlated("matern52", embedded, made.points, made._between).numpy() @ made._inverse
        values = (between @ np.repeat(functions, n, axis=0)[..., None])[..., 0]
        standard = torch.as_tensor(without_minima(values, np.ones(values.shape, dtype=bool)))
        answers = ridge_mean(made._features(embedded), standard, 0.1).numpy()
        answers /= np.maximum(np.linalg.norm(answers, axis=1, keepdims=True), 1.0)
        means = answers.reshape(count, n, -1).mean(axis=1)
        for epsilon in (1.0, 2.0):
            plan = pb.plan(few, late, privacy=pb.Privacy(epsilon=epsilon, delta=1e-5), rounds=20)
            stddev = plan.noise_multiplier / n
            noisy = means + stddev * rng.standard_normal(means.shape)
            heard[n_features, epsilon] = np.mean([_stands_out(made._spread, row, stddev) for row in noisy])
            least = min(1.0, 4.6 / n_features**0.5)
            assert late.least_signal_to_noise(where) == pytest.approx(least)
            assert (plan.largest_over_noise >= least) == (heard[n_features, epsilon] > 0.5)
            assert abs(heard[n_features, epsilon] - 0.5) > 5 * 0.016
    assert heard[16, 1.0] == pytest.approx(heard[64, 1.0], abs=0.11)
    assert heard[16, 2.0] == pytest.approx(heard[64, 2.0], abs=0.11)


def found_by(where, functions, noise, rng):
    """Mean correlation of what is decoded, and of the weights' own function, with functions at the public points."""
    made = decoder(where)
    (matrix, *_), _ = made.answers(2)
    phi = made._features(torch.as_tensor(made.points)).numpy()
    phi, after, before = phi - phi.mean(axis=0), [], []
    for common in functions:
        weights = matrix @ common + noise / 8 * rng.standard_normal(64)
        mean, _ = decode(weights, made.priors, *noisy(made, noise / 8, where.n_clients))
        after.append(np.corrcoef(mean, common)[0, 1])
        before.append(np.corrcoef(phi @ weights, common)[0, 1])
    return np.mean(after), np.mean(before)


def noisy(made, stddev, n_clients):
    matrices, squares = made.answers(2)
    return matrices, (stddev**2 + 1e-9) * np.eye(64) + squares / n_clients


@pytest.mark.parametrize(("noise", "gain"), [(0.0, 0.05), (0.03, 0.02), (1.0, -0.03)])
def test_decoding_finds_the_common_function_where_noise_allows_and_does_no_harm_where_not(noise, gain):
    """Mean correlation over 60 functions, after and before; zeros say nothing of any direction."""
    where, rng = setting(PLANE, n_clients=400), np.random.default_rng(0)
    made = decoder(where)
    functions = np.sqrt(rng.random((60, 1))) * drawn(rng, made.priors[0], 60)
    after, before = found_by(where, functions, noise, rng)
    assert after > before + gain
    assert not decode(np.zeros(64), made.priors, *noisy(made, 0.1, 400))[0].any()


def test_categories_can_be_as_unlike_as_they_are(monkeypatch):
    """What helps with one choice hurts with the other; 40 functions of the rate, with a sign for the kind.

    Planted: choices that are taken to be much alike, as if they were numbers close by, lose the signs.
    """
    where, rng = setting(MIXED, n_clients=4000), np.random.default_rng(3)

    def functions(made):
        slopes, bends = rng.standard_normal((2, 40, 1))
        signs, rate = np.where(made.points[:, 0] > 0, 1.0, -1.0), made.points[:, 3] - 0.5
        found = signs * (slopes * rate + bends * (rate**2 - 1 / 12))
        found = found - found.mean(axis=1, keepdims=True)
        return 0.9 * found / found.std(axis=1, keepdims=True)

    well, _ = found_by(where, functions(decoder(where)), 0.03, rng)
    monkeypatch.setattr(pooled, "_CHOICES", (20.0,))
    badly, _ = found_by(where, functions(decoder(where)), 0.03, rng)
    assert well > 0.8
    assert badly < well - 0.1


def test_a_pool_is_decoded_once_and_a_new_one_anew():
    made, rng = decoder(setting(PLANE, rounds=8)), np.random.default_rng(0)
    weights = rng.standard_normal(64)
    first = made.pool(weights, 0.1, 2)
    assert made.pool(weights.copy(), 0.1, 5) is first  # the same release is inside
    for again in (made.pool(weights, 0.1, 6), made.pool(weights, 0.2, 6), made.pool(2 * weights, 0.2, 6)):
        assert again is not first
    assert made.pool(0.001 * weights, 1.0, 6) is None
