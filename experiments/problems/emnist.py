"""Federated EMNIST: the digits of 50 writers, from whatever form of it stands in ``PRIVBO_DATA``.

- ``femnist/train/*.json`` and ``femnist/test/*.json``: LEAF's, with a split per writer (Caldas et al. 2018);
- ``fed_emnist_digitsonly_train.h5`` and ``..._test.h5``: TensorFlow Federated's, a group per writer (needs h5py);
- ``fed_emnist_digitsonly.sqlite``, or ``.sqlite.lzma``: its newer form, a serialised ``tf.Example`` per image;
- ``by_write`` beside ``by_class``: NIST Special Database 19, whose folders by writer hold no classes: the same file
  among the folders by class, 30 to 39 for the digits, tells. Every other image of a digit validates.

The paper takes the first 50 of TensorFlow Federated's writers and its split. Writers are taken in the order of their
names, classes other than the ten digits are left out, ink is 1. The objective is a table of trained networks as in
``writers``: the paper trains a network per evaluation.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

import privbo as pb
from experiments.problems.data import local, missing
from experiments.problems.writers import N_WRITERS, WriterClients, held_back, scored, table_of
from privbo.protocol.messages import FloatArray, IntArray

FILES = (
    "femnist",
    "fed_emnist_digitsonly_train.h5",
    "fed_emnist_digitsonly.sqlite",
    "fed_emnist_digitsonly.sqlite.lzma",
    "by_write",
)
N_DIGITS, SIDE = 10, 28
Half: TypeAlias = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Writer:
    """Digits of one writer: images ``(n, 28, 28)`` in [0, 1] with ink 1, and labels ``(n,)``."""

    name: str
    train: FloatArray
    train_label: IntArray
    held: FloatArray
    held_label: IntArray


def clients(seed: int) -> WriterClients:  # noqa: ARG001  # the table is fixed
    """Give the writers with the paper's linear ranges.

    Raises:
        ConfigurationError: If none of the files is there, or one is not what its name says.
    """
    return WriterClients(table(), provenance="federated EMNIST, digits; interpolated table of 512 networks each")


@lru_cache(maxsize=1)
def table() -> FloatArray:
    """Give the accuracy of every writer at every point of the grid, trained once and kept in the cache."""
    rows = {}
    for writer in writers():
        data = (writer.train, writer.train_label, writer.held, writer.held_label)
        key = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in data)).hexdigest()[:16]
        rows[key] = partial(scored, *data)
    return table_of("emnist", rows)


def writers(count: int = N_WRITERS) -> list[Writer]:
    """Give the first writers of what stands in ``PRIVBO_DATA``.

    Raises:
        ConfigurationError: If none of the files is there, or one is not what its name says.
    """
    path = local(*FILES)
    if path is None:
        raise missing("federated EMNIST", FILES, "LEAF, TensorFlow Federated or NIST Special Database 19")
    readers = {"femnist": leaf, "by_write": nist}
    read = readers.get(path.name) or (hdf5 if path.suffix == ".h5" else sqlite)
    return list(read(path, count))


def leaf(folder: Path, count: int) -> Iterator[Writer]:
    """Read LEAF's JSON: users with ``x``, rows of 784, and ``y``, in ``train`` and ``test``."""
    sides = [_leaf_users(folder / side) for side in ("train", "test")]
    for name in sorted(set(sides[0]) & set(sides[1]))[:count]:
        train, held = ((np.array(side[name]["x"]), np.array(side[name]["y"])) for side in sides)
        yield _writer(name, train, held)


def _leaf_users(folder: Path) -> dict[str, Mapping[str, list[object]]]:
    users: dict[str, Mapping[str, list[object]]] = {}
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text())["user_data"]
        users |= {name: user for name, user in told.items() if any(label in range(N_DIGITS) for label in user["y"])}
    if not users:
        raise pb.ConfigurationError(f"{folder} holds no JSON of LEAF with digits; run its preprocess.sh, or remove it")
    return users


def hdf5(train: Path, count: int) -> Iterator[Writer]:
    """Read TensorFlow Federated's HDF5: ``examples/WRITER/pixels`` and ``label``, in two files."""
    try:
        import h5py
    except ImportError:
        raise pb.ConfigurationError(f"reading {train.name} needs h5py; install privbo[data]") from None
    with h5py.File(train) as file, h5py.File(train.with_name(train.name.replace("_train", "_test"))) as other:
        for name in sorted(set(file["examples"]) & set(other["examples"]))[:count]:
            groups = (side["examples"][name] for side in (file, other))
            train_half, held = ((np.asarray(group["pixels"]), np.asarray(group["label"])) for group in groups)
            yield _writer(name, train_half, held)


def sqlite(path: Path, count: int) -> Iterator[Writer]:
    """Read TensorFlow Federated's database: ``examples(split_name, client_id, serialized_example_proto)``."""
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".lzma":
            plain = Path(folder) / path.stem
            plain.write_bytes(lzma.decompress(path.read_bytes()))
            path = plain
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            found = connection.execute(
                "SELECT DISTINCT client_id FROM client_metadata ORDER BY client_id LIMIT ?", [count]
            )
            for (name,) in found.fetchall():
                yield _writer(name, _examples(connection, name, "train"), _examples(connection, name, "test"))
        except sqlite3.DatabaseError as error:
            raise pb.ConfigurationError(f"{path} is no database of TensorFlow Federated: {error}") from None
        finally:
            connection.close()


def _examples(connection: sqlite3.Connection, writer: str, side: str) -> tuple[FloatArray, IntArray]:
    asked = "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ? ORDER BY rowid"
    features = [example(bytes(row[0])) for row in connection.execute(asked, [writer, side])]
    pixels = np.array([one["pixels"] for one in features], dtype=np.float64)
    return pixels, np.array([one["label"][0] for one in features], dtype=np.int64)


def example(content: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """Parse a serialised ``tf.Example`` of float and integer lists: features by name.

    A message is a chain of fields: number and kind, then a varint, or a length and so many bytes.
    """
    features = {}
    for entry in _fields(_fields(content)[0][1]):
        name, feature = (value for _, value in _fields(entry[1]))
        ((kind, values),) = _fields(feature)
        packed = b"".join(value for _, value in _fields(values))
        features[name.decode()] = np.frombuffer(packed, "<f4") if kind == 2 else np.array(list(_varints(packed)))
    return features


def _fields(content: bytes) -> list[tuple[int, bytes]]:
    """Fields of a message with their content; single numbers as the bytes that a packed list of one has."""
    found, at = [], 0
    while at < len(content):
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                end = _varint(content, at)[1]
            case 2:
                length, at = _varint(content, at)
                end = at + length
            case 5:
                end = at + 4
            case kind:
                raise pb.ConfigurationError(f"a tf.Example holds a field of kind {kind}, which has no images")
        found.append((tag >> 3, content[at:end]))
        at = end
    return found


def _varints(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        value, at = _varint(content, at)
        yield value


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 0x80:  # the last byte of a number has no mark
            return value, at


def nist(by_write: Path, count: int) -> Iterator[Writer]:
    """Read NIST's PNG files, shrunk to 28x28: ``by_write/hsf_*/f*/d*/*.png``, classes from ``by_class/3?``."""
    classes = {
        hashlib.md5(path.read_bytes(), usedforsecurity=False).digest(): int(folder.name) - 30
        for folder in sorted(by_write.with_name("by_class").glob("3?"))
        for path in folder.rglob("*.png")
    }
    if not classes:
        raise pb.ConfigurationError(
            f"{by_write} has no by_class/30 to 39 beside it, which tell the digits apart; add it"
        )
    for folder in sorted(by_write.glob("hsf_*/f*"), key=lambda folder: folder.name)[:count]:
        read = [
            (p, hashlib.md5(p.read_bytes(), usedforsecurity=False).digest()) for p in sorted(folder.glob("d*/*.png"))
        ]
        label = np.array([classes[digest] for _, digest in read if digest in classes], dtype=np.int64)
        pixels = np.array([_shrunk(path) for path, digest in read if digest in classes])
        held = held_back(label)
        yield _writer(folder.name, (pixels[~held], label[~held]), (pixels[held], label[held]))


def _shrunk(path: Path) -> FloatArray:
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(small, dtype=np.float64) / 255.0


def _writer(name: str, train: Half, held: Half) -> Writer:
    (pixels, label), (held_pixels, held_label) = _digits(*train), _digits(*held)
    if not (len(label) and len(held_label)):
        raise pb.ConfigurationError(
            f"writer {name!r} has no digit in one half of the split; take the form with digits only"
        )
    return Writer(name=name, train=pixels, train_label=label, held=held_pixels, held_label=held_label)


def _digits(pixels: npt.NDArray[np.generic], label: npt.NDArray[np.generic]) -> tuple[FloatArray, IntArray]:
    """Digits only, ink 1: paper is what most pixels are."""
    digit = np.asarray(label).reshape(-1).astype(np.int64)
    images = np.asarray(pixels, dtype=np.float64).reshape(-1, SIDE, SIDE)[digit < N_DIGITS]
    return 1.0 - images if np.median(images) > 0.5 else images, digit[digit < N_DIGITS]
