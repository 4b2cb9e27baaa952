"""CIFAR-10 and CIFAR-100 from their original binary archives; no torchvision.

Archives are read from a local folder and checked. A record is one
label byte (CIFAR-100: coarse, then fine) and 3072 pixel bytes, channels first.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from experiments.problems.digits import Digits
from privbo.protocol.errors import ConfigurationError
from privbo.training.private_neural import Split

URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Archive of a data set, and the layout of its records.

    Attributes:
        file: Name of the archive.
        md5: Checksum the authors publish.
        train: Names of the training members inside, without folders.
        test: Names of the test members.
        n_labels: Label bytes per record; the last one counts.
    """

    file: str
    md5: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    n_labels: int


CIFAR10 = Archive(
    file="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    n_labels=1,
)
CIFAR100 = Archive(
    file="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    train=("train.bin",),
    test=("test.bin",),
    n_labels=2,
)


ARCHIVES = {"cifar10": CIFAR10, "cifar100": CIFAR100}


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images ``(n, 3, 32, 32)`` in uint8 and their classes ``(n,)`` in int64."""

    images: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.int64]


def task(seed: int, archive: str, n_validation: int = 5000) -> Digits:
    """Give a seed's split of an archive; ``n_validation`` of the training images are held back.

    Raises:
        ConfigurationError: If the archive is not there.
    """
    train, test = load(ARCHIVES[archive])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (x, y), (test_x, test_y) = tensors(train, device), tensors(test, device)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(device)
    held, kept = order[:n_validation], order[n_validation:]
    split = Split(train_x=x[kept], train_y=y[kept], validation_x=x[held], validation_y=y[held])
    return Digits(split=split, test_x=test_x, test_y=test_y)


def tensors(images: Images, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Give inputs normalised to about [-1, 1] and classes."""
    x = torch.tensor(images.images, device=device).float().div_(127.5).sub_(1.0)
    return x, torch.tensor(images.classes, device=device)


def load(archive: Archive, where: Path | None = None) -> tuple[Images, Images]:
    """Read training and test images.

    Args:
        archive: ``CIFAR10`` or ``CIFAR100``.
        where: Folder of the archive; ``PRIVBO_DATA``, or ``data`` here, unless named.

    Raises:
        ConfigurationError: If the archive is missing, damaged, or its records have a wrong size.
    """
    path = (where or Path(os.environ.get("PRIVBO_DATA", "data"))) / archive.file
    if not path.exists():
        raise ConfigurationError(f"{path} is not there; put it there (from {URL}), or set PRIVBO_DATA")
    found = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    if found != archive.md5:
        raise ConfigurationError(f"{path} has md5 {found}, not {archive.md5}; remove it and fetch it again")
    with tarfile.open(path) as tar:
        members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
        return _images(tar, members, archive.train, archive), _images(tar, members, archive.test, archive)


def _images(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], names: tuple[str, ...], archive: Archive
) -> Images:
    parts = []
    for name in names:
        stream = tar.extractfile(members[name]) if name in members else None
        if stream is None:
            raise ConfigurationError(f"{archive.file} has no member {name!r}; fetch the binary version")
        parts.append(stream.read())
    raw = np.frombuffer(b"".join(parts), dtype=np.uint8)
    size = archive.n_labels + 3072
    if len(raw) % size or not len(raw):
        raise ConfigurationError(f"{archive.file}: {len(raw)} bytes are no whole number of {size}-byte records")
    records = raw.reshape(-1, size)
    return Images(
        images=records[:, archive.n_labels :].reshape(-1, 3, 32, 32).copy(),
        classes=records[:, archive.n_labels - 1].astype(np.int64),
    )
