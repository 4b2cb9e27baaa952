"""Loaders and objectives of the experiments' real data, on small data of our own in the original formats."""

import gzip

import numpy as np
import pytest
import torch
from scipy.io import savemat

from experiments.problems import activity, landmine, writers

RNG = np.random.default_rng(8)


def rows(n, dim=4, n_classes=2):
    y = np.arange(n) % n_classes
    return RNG.standard_normal((n, dim)) + y[:, None], y


def packed(halves):
    """Fields in the packed format, their rows in another order."""
    columns = {"X": [], "y": [], "field": [], "is_val": [], "split_order": []}
    for i, (x, y, held_x, held_y) in enumerate(halves):
        for side, (a, b) in enumerate(((x, y), (held_x, held_y))):
            back = np.arange(len(b))[::-1]
            columns["X"].append(a[back])
            columns["y"].append(b[back])
            columns["field"].append(np.full(len(b), i))
            columns["is_val"].append(np.full(len(b), bool(side)))
            columns["split_order"].append(back)
    return {k: np.concatenate(v) for k, v in columns.items()}


def test_landmine_reads_both_formats_and_both_scores(tmp_path):
    fields = [rows(60) for _ in range(2)]
    features, labels = np.empty((1, 2), dtype=object), np.empty((1, 2), dtype=object)
    for i, (x, y) in enumerate(fields):
        features[0, i], labels[0, i] = x, y[:, None]
    savemat(tmp_path / "LandmineData.mat", {"feature": features, "label": labels})
    original = landmine.Fields(tmp_path)
    np.savez(tmp_path / "landmine.npz", **packed(original.halves))
    again = landmine.Fields(tmp_path)
    for a, b in zip(original.halves, again.halves, strict=True):
        for left, right in zip(a, b, strict=True):
            np.testing.assert_array_equal(left, right)
    unit = np.array([0.5, 0.01])
    by_decision, by_probability = (again.auc(0, unit, scores) for scores in ("decision", "probability"))
    assert 0.5 < by_decision <= 1.0
    assert min(abs(by_probability - by_decision), abs(1 - by_probability - by_decision)) < 0.05  # Platt may turn it
    clients = landmine.FieldClients(again)
    assert clients.problem().n_clients == 2
    np.testing.assert_allclose(clients.observe(np.array([0]), unit[None]), [by_decision])


def test_activity_reads_both_formats(tmp_path, monkeypatch):
    x, y = rows(120, dim=5, n_classes=6)
    subject = np.repeat([1, 2], 60)
    np.savez(tmp_path / "har_recomputed561.npz", X=x.astype(np.float32), y=y.astype(np.uint8), subject=subject)
    folder = tmp_path / "original" / "UCI HAR Dataset"
    for part, inside in (("train", subject == 1), ("test", subject == 2)):
        (folder / part).mkdir(parents=True)
        np.savetxt(folder / part / f"X_{part}.txt", x.astype(np.float32)[inside])
        np.savetxt(folder / part / f"y_{part}.txt", y[inside] + 1, fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", subject[inside], fmt="%d")
    found = []
    for place in (tmp_path, tmp_path / "original"):
        monkeypatch.setenv("PRIVBO_DATA", str(place))
        activity.subjects.cache_clear()
        found.append(activity.subjects())
    activity.subjects.cache_clear()
    np.testing.assert_allclose(found[0].train, found[1].train, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(found[0].held_y, found[1].held_y)
    assert found[0].counts.tolist() == [30, 30]


def test_activity_training_against_plain_weights():
    """Gram form against ordinary stochastic gradient descent on explicit weights."""
    halves = []
    for n in (31, 40):
        x, y = rows(2 * n, dim=5, n_classes=6)
        halves.append((x[:n], y[:n], x[n:], y[n:]))
    packed = activity.pack(halves)
    for subject, (batch, l2, rate) in enumerate(((16, 0.3, 0.1), (512, 5.0, 0.9))):
        x, y, held_x, held_y = halves[subject]
        order = packed.order[subject, : len(y)]
        weights = np.zeros((6, 6))
        x1 = np.hstack([x, np.ones((len(x), 1))])
        for _ in range(activity.EPOCHS):
            for start in range(0, len(y), batch):
                inside = (order >= start) & (order < start + batch)
                scores = x1[inside] @ weights
                chance = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
                gradient = x1[inside].T @ (chance - np.eye(6)[y[inside]]) / inside.sum()
                weights = (weights - rate * gradient) / (1 + rate * l2)
        expected = np.mean((np.hstack([held_x, np.ones((len(held_x), 1))]) @ weights).argmax(axis=1) == held_y)
        arguments = (np.array([subject]), np.array([batch]), np.array([l2]), np.array([rate]))
        assert packed.accuracy(*arguments)[0] == pytest.approx(expected)


def test_writers_are_read_from_the_original_files(tmp_path):
    pixels = RNG.integers(0, 256, (200, 28, 28))
    labels = np.stack(
        [np.arange(200) % 10, np.zeros(200, int), np.repeat([5, 9], 100), *[np.zeros(200, int)] * 5], axis=1
    )
    for name, values, kind, code in (("i", pixels, ">u1", 8), ("l", labels, ">i4", 12)):
        head = bytes([0, 0, code, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes()
        (tmp_path / name).write_bytes(gzip.compress(head + values.astype(kind).tobytes()))
    images = writers.read_idx(tmp_path / "i", np.dtype(">u1"))
    read = writers.select(images, writers.read_idx(tmp_path / "l", np.dtype(">i4")), n_writers=1)
    np.testing.assert_allclose(read.pixels, pixels[:100] / 255)
    assert set(read.writer) == {0}
    np.testing.assert_array_equal(read.label, np.arange(100) % 10)


def test_network_against_torch_layers():
    generator = torch.Generator().manual_seed(1)
    filters, bias = torch.randn(1, 25, 4, generator=generator), torch.randn(1, 4, generator=generator)
    head = torch.randn(1, 101, 10, generator=generator)
    pixels = RNG.random((3, 28, 28))
    small = torch.nn.functional.avg_pool2d(torch.tensor(pixels, dtype=torch.float32)[:, None], 2)
    hidden = torch.nn.functional.conv2d(small, filters[0].T.reshape(4, 1, 5, 5), bias[0])
    pooled = torch.nn.functional.max_pool2d(hidden, 2).relu()  # (n, filters, 5, 5)
    flat = pooled.permute(0, 2, 3, 1).reshape(3, -1)
    expected = flat @ head[0, :-1] + head[0, -1]
    found = writers.network_scores(writers.patches_of(pixels), filters, bias, head)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
