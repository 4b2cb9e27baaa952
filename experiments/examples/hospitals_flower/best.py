"""PRIVATE: what each ward of a hospital found, from the hospital's own disk: ``python best.py OUT/HOSPITAL``."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ward_model import SPACE

from privbo.protocol.space import Space


def main(hospital: Path) -> None:
    """One line per ward: where it started, what it found, and the parameters it would use."""
    for path in sorted((hospital / "kept").glob("*/evaluations.npz")):
        with np.load(path, allow_pickle=False) as kept, np.load(last(path.parent / "sent"), allow_pickle=False) as sent:
            started = kept["values"][:, kept["rounds"] < 0].max(axis=1)
            found = np.nanmax(kept["values"], axis=1)
            for ward, first, best, unit in zip(sent["clients"], started, found, kept["recommended"], strict=True):
                params = Space(SPACE).decode(unit)
                print(f"ward {ward:2d}: {first:.2f} at first, {best:.2f} with", end=" ")
                print(", ".join(f"{name} = {value:.3g}" for name, value in params.items()))


def last(folder: Path) -> Path:
    """The latest round's record."""
    return max(folder.glob("*.npz"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hospital", type=Path)
    main(parser.parse_args().hospital)
