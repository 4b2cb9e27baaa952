import copy

import numpy as np
import pytest
import sklearn
from sklearn.svm import SVC

import privbo as pb
from privbo.quickstart.digits_svm import GRID, N_CLIENTS, SPACE, DigitsSVM, Shard, deal, problem, split


@pytest.fixture(scope="module")
def digits():
    return split(0)


def test_every_image_goes_to_one_half_of_one_client(digits):
    assert len(digits.shards) == N_CLIENTS
    rows = [images for s in digits.shards for images in (s.train_images, s.validation_images)]
    assert sum(map(len, rows)) == 1797
    assert len(np.unique(np.concatenate(rows), axis=0)) == 1797


def test_shards_are_unequal_and_halves_have_two_classes(digits):
    sizes = [len(s.train_labels) + len(s.validation_labels) for s in digits.shards]
    assert min(sizes) * 1.5 < max(sizes)
    for shard in digits.shards:
        assert abs(len(shard.train_labels) - len(shard.validation_labels)) <= 1
        assert len(np.unique(shard.train_labels)) >= 2
        assert len(np.unique(shard.validation_labels)) >= 2


@pytest.mark.parametrize("seed", range(1, 12))
def test_every_seed_gives_usable_halves(seed):
    for shard in split(seed).shards:
        assert min(len(np.unique(shard.train_labels)), len(np.unique(shard.validation_labels))) >= 2


def test_a_split_follows_from_its_seed(digits):
    split.cache_clear()
    assert split(0).name == digits.name
    assert split(1).name != digits.name


def test_score_is_the_accuracy_on_the_validation_half(digits):
    shard, params = digits.shards[7], {"C": 3.0, "gamma": 2e-3}
    model = SVC(C=3.0, gamma=2e-3, kernel="rbf").fit(shard.train_images, shard.train_labels)
    assert digits.score(7, params) == model.score(shard.validation_images, shard.validation_labels)


def test_batch_agrees_with_score_and_a_repeated_question_is_answered_from_memory(digits):
    fresh = DigitsSVM(copy.deepcopy(digits.shards), "fresh")
    clients, units = np.array([3, 5, 3]), np.array([[0.5, 0.5], [0.2, 0.8], [0.5, 0.5]])
    expected = [digits.score(int(c), SPACE.decode(u)) for c, u in zip(clients, units, strict=True)]
    assert fresh.batch(clients, units).tolist() == expected
    for shard in fresh.shards:
        shard.validation_labels[:] = -1  # whatever is fitted from here on scores 0
    assert fresh.batch(clients, units).tolist() == expected
    assert fresh.batch(clients, units / 2).tolist() == [0.0] * 3


def test_surfaces_tell_good_from_bad(digits):
    good = np.mean([digits.score(n, {"C": 10.0, "gamma": 1e-3}) for n in range(N_CLIENTS)])
    bad = np.mean([digits.score(n, {"C": 1e-2, "gamma": 1e-5}) for n in range(N_CLIENTS)])
    assert good > 2 * bad


def test_best_values_are_the_grids_maximum_and_are_kept(monkeypatch, tmp_path, digits):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few = DigitsSVM(digits.shards[:2], "few")
    best = few.best_values((6, 5))
    units = [(c, g) for c in np.linspace(0, 1, 6) for g in np.linspace(0, 1, 5)]
    expected = [max(few.score(n, SPACE.decode(u)) for u in units) for n in range(2)]
    assert best.tolist() == expected
    others = DigitsSVM(digits.shards[2:4], "few")  # found under its name, not computed again
    assert others.best_values((6, 5)).tolist() == expected
    (kept,) = (tmp_path / "privbo").iterdir()
    assert kept.name == f"few-6x5-{sklearn.__version__}.npy"
    np.save(kept.with_name(f"few-{GRID[0]}x{GRID[1]}-{sklearn.__version__}.npy"), [0.5])
    assert few.best_values().tolist() == [0.5]  # another grid's are others


def test_an_image_set_of_one_class_is_refused():
    with pytest.raises(pb.ConfigurationError, match="two classes"):
        deal(np.zeros((600, 64)), np.ones(600, dtype=np.int64), seed=4000)


def test_the_problem_runs(digits):
    made = problem(seed=0)
    assert made.n_clients == N_CLIENTS
    assert made.search_space == SPACE
    assert "seed 0" in made.provenance
    values = made.evaluator()(np.array([0, 1]), np.array([[0.6, 0.5], [0.6, 0.5]]))
    assert values.tolist() == digits.batch(np.array([0, 1]), np.array([[0.6, 0.5], [0.6, 0.5]])).tolist()
    assert isinstance(digits.shards[0], Shard)
