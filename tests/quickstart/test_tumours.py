import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.kernel_ridge import KernelRidge

import privbo as pb
from privbo.quickstart import CONFIG
from privbo.quickstart.tumours import GROUPS, LARGEST, N_CLIENTS, SMALLEST, SPACE, deal, problem
from privbo.runs.spec import read_spec


def test_every_client_has_rows_of_the_data_in_two_halves_with_both_labels() -> None:
    data, labels = load_breast_cancer(return_X_y=True)
    known = {row.tobytes(): label for row, label in zip((data - data.mean(0)) / data.std(0), labels, strict=True)}
    shards = deal(0).shards
    assert len(shards) == N_CLIENTS
    sizes = [len(s.train) + len(s.validation) for s in shards]
    assert (min(sizes), max(sizes), sizes) == (SMALLEST, LARGEST, sorted(sizes))
    seen: set[bytes] = set()
    for shard in shards:
        for rows, of_rows in ((shard.train, shard.train_labels), (shard.validation, shard.validation_labels)):
            assert set(of_rows) == {0.0, 1.0}
            assert [known[row.tobytes()] for row in rows] == of_rows.tolist()
            seen |= {row.tobytes() for row in rows}
    assert len(seen) == len(known)  # the deck goes round, so nobody is left out


def test_a_deal_follows_from_its_seed_and_every_seed_gives_usable_halves() -> None:
    first = deal(0).shards[3].train
    deal.cache_clear()
    assert np.array_equal(deal(0).shards[3].train, first)
    for seed in range(1, 12):
        assert not np.array_equal(deal(seed).shards[3].train, first)
        labels = [half for s in deal(seed).shards for half in (s.train_labels, s.validation_labels)]
        assert {len(np.unique(half)) for half in labels} == {2}


def test_the_score_is_the_explained_share_of_the_validation_labels_variance() -> None:
    shard = deal(0).shards[7]
    near, own = (
        sum(
            weight / 10 * ((rows[:, None, group] - shard.train[None, :, group]) ** 2).sum(-1)
            for weight, group in ((0.2, slice(0, 10)), (0.01, slice(10, 20)), (0.4, slice(20, 30)))
        )
        for rows in (shard.validation, shard.train)
    )
    middle = shard.train_labels.mean()
    model = KernelRidge(alpha=0.3, kernel="precomputed").fit(np.exp(-own), shard.train_labels - middle)
    missed = middle + model.predict(np.exp(-near)) - shard.validation_labels
    expected = 1 - (missed**2).mean() / shard.validation_labels.var()
    found = deal(0).score(7, {"ridge": 0.3, "mean": 0.2, "error": 0.01, "worst": 0.4})
    assert found == pytest.approx(expected, abs=1e-9)


def test_the_packaged_configuration_states_the_problem_and_shares_a_prior() -> None:
    stated = read_spec(CONFIG, load=False)
    assert stated.problem.search_space == SPACE == problem().search_space
    assert stated.problem.n_clients == N_CLIENTS
    assert stated.algorithm == pb.SharedPrior()
    assert stated.privacy == pb.Privacy(epsilon=2.0, delta=1e-5)
    assert pb.plan(problem(), pb.SharedPrior(), privacy=stated.privacy, rounds=stated.rounds).releases == 2
    assert set(SPACE.parameters) == {"ridge", *GROUPS}
