"""Loaders and objectives of the experiments' real data, on small data of our own in the original formats."""

import gzip
import json
import lzma
import sqlite3
from itertools import chain

import numpy as np
import pytest
import torch
from scipy.io import savemat

import privbo as pb
from experiments.problems import activity, emnist, landmine, writers
from experiments.problems.writers import GRID, scored

RNG = np.random.default_rng(8)


def rows(n, dim=4, n_classes=2):
    y = np.arange(n) % n_classes
    return RNG.standard_normal((n, dim)) + y[:, None], y


def packed(halves):
    """Fields in the packed format, their rows in another order."""
    parts = []
    for i, (*train, held_x, held_y) in enumerate(halves):
        for held, (x, y) in ((False, train), (True, (held_x, held_y))):
            back = np.arange(len(y))[::-1]
            parts.append((x[back], y[back], np.full(len(y), i), np.full(len(y), held), back))
    names = "X", "y", "field", "is_val", "split_order"
    return dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True))


def test_landmine_reads_both_formats_and_both_scores(tmp_path):
    fields = [rows(60) for _ in range(2)]
    cells = np.empty((2, 1, 2), dtype=object)
    for i, (x, y) in enumerate(fields):
        cells[:, 0, i] = x, y[:, None]
    savemat(tmp_path / "LandmineData.mat", {"feature": cells[0], "label": cells[1]})
    original = landmine.Fields(tmp_path)
    np.savez(tmp_path / "landmine.npz", **packed(original.halves))
    again = landmine.Fields(tmp_path)
    for one, other in zip(chain(*original.halves), chain(*again.halves), strict=True):
        np.testing.assert_array_equal(one, other)
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
        found.append(activity.subjects.__wrapped__())
    np.testing.assert_allclose(found[0].train, found[1].train, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(found[0].held_y, found[1].held_y)
    assert found[0].counts.tolist() == [30, 30]


def test_activity_training_against_plain_weights():
    """Gram form against ordinary stochastic gradient descent on explicit weights."""
    halves = [(*rows(n, dim=5, n_classes=6), *rows(n, dim=5, n_classes=6)) for n in (31, 40)]
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


# ---- federated EMNIST in the forms that people have, on small data of our own

NAMES = ("f0001_41", "f0000_14", "f0002_02")


def drawn(n: int = 24) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Images of bars whose place says the digit, ink 1, by writer and side; single precision is exact."""
    rng, found = np.random.default_rng(3), {}
    for name in NAMES:
        label = rng.permutation(np.arange(n) % 10)
        pixels = np.round(rng.uniform(0.0, 0.25, (n, 28, 28)) * 255) / 256
        for image, digit in zip(pixels, label, strict=True):
            image[:, 2 * digit + 3 : 2 * digit + 6] = 1.0
        found[name] = {"train": (pixels[:-4], label[:-4]), "test": (pixels[-4:], label[-4:])}
    return found


def as_leaf(folder, data):
    for side in ("train", "test"):
        (folder / "femnist" / side).mkdir(parents=True)
        for i, (name, sides) in enumerate(data.items()):
            pixels, label = sides[side]
            letters = [0.5] * 784  # of a class that is no digit
            user = {"x": [*(1.0 - pixels).reshape(len(label), -1).tolist(), letters], "y": [*label.tolist(), 40]}
            told = {"users": [name], "num_samples": [len(label) + 1], "user_data": {name: user}}
            (folder / "femnist" / side / f"all_data_{i}.json").write_text(json.dumps(told))


def as_hdf5(folder, data):
    h5py = pytest.importorskip("h5py")
    for side in ("train", "test"):
        with h5py.File(folder / f"fed_emnist_digitsonly_{side}.h5", "w") as file:
            for name, sides in data.items():
                file[f"examples/{name}/pixels"] = (1.0 - sides[side][0]).astype(np.float32)
                file[f"examples/{name}/label"] = sides[side][1].astype(np.int32)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def proto(pixels: np.ndarray, label: int, *, packed: bool) -> bytes:
    """A tf.Example; lists of numbers are packed or not, both are allowed."""
    values = [value.tobytes() for value in pixels.astype("<f4").ravel()]
    floats = field(1, b"".join(values)) if packed else b"".join(varint(1 << 3 | 5) + value for value in values)
    integers = field(1, varint(label)) if packed else varint(1 << 3) + varint(label)
    features = {"label": field(3, integers), "pixels": field(2, floats)}
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, f)) for name, f in features.items()))


def as_sqlite(folder, data):
    connection = sqlite3.connect(folder / "fed_emnist_digitsonly.sqlite")
    connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
    connection.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    for name, sides in data.items():
        for side, (pixels, label) in sides.items():
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (name, side, len(label)))
            for i, digit in enumerate(label):
                content = proto(1.0 - pixels[i], int(digit), packed=i % 2 == 0)
                connection.execute("INSERT INTO examples VALUES (?, ?, ?)", (side, name, content))
    connection.commit()
    connection.close()


def as_lzma(folder, data):
    as_sqlite(folder, data)
    plain = folder / "fed_emnist_digitsonly.sqlite"
    (folder / "fed_emnist_digitsonly.sqlite.lzma").write_bytes(lzma.compress(plain.read_bytes(), preset=0))
    plain.unlink()


@pytest.mark.parametrize("form", [as_leaf, as_hdf5, as_sqlite, as_lzma])
def test_every_form_gives_the_same_writers(form, tmp_path, monkeypatch):
    data = drawn()
    form(tmp_path, data)
    monkeypatch.setenv("PRIVBO_DATA", str(tmp_path))
    found = emnist.writers(2)
    assert [writer.name for writer in found] == sorted(NAMES)[:2]
    for writer in found:
        read = writer.train, writer.train_label, writer.held, writer.held_label
        for one, other in zip(read, chain(*data[writer.name].values()), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def as_nist(folder, data, *, classes: bool = True):
    """PNG of 128x128, black on white; a file lies by its writer and again by its class, in capitals' folders too."""
    from PIL import Image

    for name, sides in data.items():
        for i, digit in enumerate(sides["train"][1]):
            content = np.full((128, 128), 255, dtype=np.uint8)
            content[:, 8 * digit + 20 : 8 * digit + 32] = 0
            content[0, : i + 1] = NAMES.index(name)  # no two files are the same
            places = [folder / "by_write" / "hsf_0" / name / f"d{name[1:]}" / f"{i}.png"]
            places += [folder / "by_class" / str(30 + int(digit)) / "hsf_0" / f"{name}_{i}.png"] if classes else []
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(content).save(place)


def test_nists_files_by_writer_find_their_classes(tmp_path, monkeypatch):
    data = drawn()
    as_nist(tmp_path, data)
    monkeypatch.setenv("PRIVBO_DATA", str(tmp_path))
    for writer in emnist.writers():
        assert writer.train.shape[1:] == (28, 28)
        label = data[writer.name]["train"][1]
        assert sorted([*writer.train_label, *writer.held_label]) == sorted(label)
        for image, digit in zip(writer.train, writer.train_label, strict=True):
            assert abs(float(image.mean(axis=0).argmax()) - (8 * digit + 25.5) * 28 / 128) < 1.0
    as_nist(tmp_path / "without", data, classes=False)
    monkeypatch.setenv("PRIVBO_DATA", str(tmp_path / "without"))
    with pytest.raises(pb.ConfigurationError, match="by_class"):
        emnist.writers()


def test_writers_are_clients_with_a_table_that_is_kept(tmp_path, monkeypatch):
    data = {name: sides for name, sides in drawn(10).items() if name == NAMES[0]}
    as_leaf(tmp_path, data)
    monkeypatch.setenv("PRIVBO_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(emnist, "table", emnist.table.__wrapped__)
    world = emnist.clients(0)
    problem = world.problem()
    assert (problem.n_clients, world.table.shape) == (1, (1, 512))
    assert "federated EMNIST" in problem.provenance
    (train, train_label), (held, held_label) = data[NAMES[0]]["train"], data[NAMES[0]]["test"]
    np.testing.assert_allclose(world.table[0, 40:44], scored(train, train_label, held, held_label, GRID[40:44]))
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 1


def test_what_is_missing_or_damaged_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVBO_DATA", str(tmp_path))
    with pytest.raises(pb.ConfigurationError, match="LEAF, TensorFlow Federated or NIST"):
        emnist.writers()
    (tmp_path / "fed_emnist_digitsonly.sqlite").write_bytes(b"no database at all, whatever its name says" * 10)
    with pytest.raises(pb.ConfigurationError, match="no database of TensorFlow Federated"):
        emnist.writers()
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    with pytest.raises(pb.ConfigurationError, match="no JSON of LEAF"):
        emnist.writers()
    with pytest.raises(pb.ConfigurationError, match="field of kind 3"):
        emnist.example(bytes([1 << 3 | 3]))
