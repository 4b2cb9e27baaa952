"""Data of the experiments: the folder named by ``PRIVBO_DATA``, or a cached download with a checksum.

Data is never part of this project. A source without a known checksum is not downloaded:
the error says where it comes from and which file is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import privbo as pb


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file's origin.

    Attributes:
        url: Where it is downloaded.
        checksum: As pooch writes it, ``"md5:..."`` or ``"sha256:..."``.
    """

    url: str
    checksum: str


def local(*names: str) -> Path | None:
    """The first of the files that stands in the folder ``PRIVBO_DATA``."""
    folder = Path(os.environ.get("PRIVBO_DATA", "data"))
    return next((folder / name for name in names if (folder / name).exists()), None)


def missing(what: str, names: tuple[str, ...], origin: str) -> pb.ConfigurationError:
    """The refusal where data is not at hand."""
    folder = os.environ.get("PRIVBO_DATA", "data")
    return pb.ConfigurationError(
        f"PRIVBO_DATA={folder!r} holds none of {', '.join(names)}; {what} comes from {origin}: "
        "put it there, or name a folder that holds it"
    )


def download(sources: Mapping[str, Source]) -> dict[str, Path]:
    """Files by name, from the user's cache or from their origin; a wrong checksum is refused.

    Raises:
        ConfigurationError: If pooch is not installed or a download fails.
    """
    try:
        import pooch
    except ImportError:
        raise pb.ConfigurationError("downloading data needs pooch; install privbo[data] or set PRIVBO_DATA") from None
    try:
        return {
            name: Path(pooch.retrieve(source.url, source.checksum, fname=name, path=cache_folder() / "downloads"))
            for name, source in sources.items()
        }
    except (OSError, ValueError) as error:
        raise pb.ConfigurationError(f"cannot download {sorted(sources)}: {error}; set PRIVBO_DATA") from None


def cache_folder() -> Path:
    """The user's cache for what experiments compute or download once."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "privbo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
