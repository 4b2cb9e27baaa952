"""The bytes of a release: what the ledger stores is exactly what is sent."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from accountant.errors import LedgerError
from privbo.protocol.messages import Release

_MAGIC = b"privbo release 1\n"


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Public side of adaptive clipping in one release.

    Attributes:
        norm: The bound S that clipped.
        fraction: Noisy share of vectors within it.
    """

    norm: float
    fraction: float


def encode_release(release: Release, clipping: Clipping | None = None) -> bytes:
    """Canonical bytes: a magic line, a JSON header line, float64 values in little-endian order."""
    header = {
        "round": release.round,
        "shape": list(release.values.shape),
        "noise_stddev": release.noise_stddev,
        "sequence": release.sequence,
        "head": release.head,
        "clipping": None if clipping is None else asdict(clipping),
    }
    line = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return _MAGIC + line + b"\n" + np.ascontiguousarray(release.values, dtype="<f8").tobytes()


def decode_release(payload: bytes) -> tuple[Release, Clipping | None]:
    """Read what ``encode_release`` wrote; the header is checked before anything is allocated.

    Raises:
        LedgerError: If the bytes are no release.
    """
    try:
        magic, line, values = payload[: len(_MAGIC)], *payload[len(_MAGIC) :].split(b"\n", 1)
        header = json.loads(line)
        n_blocks, dim = (int(n) for n in header.pop("shape"))
        adapted = header.pop("clipping")
        sound = magic == _MAGIC and min(n_blocks, dim) >= 1 and len(values) == 8 * n_blocks * dim
        if sound and math.isfinite(header["noise_stddev"]) and header["noise_stddev"] >= 0:
            array = np.frombuffer(values, dtype="<f8").reshape(n_blocks, dim).astype(np.float64)
            return Release(values=array, **header), None if adapted is None else Clipping(**adapted)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LedgerError(f"stored bytes are no release ({error}); restore the ledger from a copy") from error
    raise LedgerError("stored bytes are no release (header and bytes disagree); restore the ledger from a copy")
