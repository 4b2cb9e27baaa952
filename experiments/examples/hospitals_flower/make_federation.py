"""Keys, data folders and settings of three hospitals: ``python make_federation.py OUT``."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from privbo.flower.keys import make_keys
from privbo.flower.party import AppFiles, approve_files, read_site

HERE = Path(__file__).parent
HOSPITALS = {"north": range(10), "south": range(10, 20), "west": range(20, 30)}


def main(out: Path) -> None:
    """Everything a real federation would have on four machines, in one folder per machine."""
    keys = make_keys(out / "keys", sites=list(HOSPITALS))
    shutil.copytree(HERE / "app", out / "server" / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (out / "server" / "app" / "federation.toml").write_text(federation(keys))
    for hospital, wards in HOSPITALS.items():
        folder = out / hospital
        (folder / "data").mkdir(parents=True)
        shutil.copy(keys / f"{hospital}.key", folder / "node.key")
        (folder / "site.toml").write_text(site(hospital, folder / "data"))
        for ward in wards:
            np.savez(folder / "data" / f"ward-{ward:02d}.npz", allow_pickle=False, **shard(ward))
    approve(out)
    print(f"{out}: server, {', '.join(HOSPITALS)}")


def approve(out: Path) -> None:
    """Every hospital reads the app's files and pins them: what `privbo flower approve` does after it has asked."""
    files = AppFiles.read(out / "server" / "app")
    for hospital in HOSPITALS:
        path = out / hospital / "site.toml"
        approve_files(path, read_site(path), files)


def federation(keys: Path) -> str:
    """Which wards are where, and every hospital's public key; public."""
    lines = ["round_timeout = 300.0", "start_timeout = 300.0", "min_sites = 2"]
    for hospital, wards in HOSPITALS.items():
        lines += ["", f"[sites.{hospital}]", f'clients = "{wards[0]}-{wards[-1]}"']
        lines += [f'public_key = "{Path(f"{keys / hospital}.pub").read_text()}"']
    return "\n".join(lines) + "\n"


def site(hospital: str, data: Path) -> str:
    """A hospital's own settings; nobody else sees them."""
    return (
        f'name = "{hospital}"\ndirectory = "kept"\n\n'
        "[policy]  # over all runs together on this hospital's wards\nepsilon = 8.0\ndelta = 1e-6\n\n"
        f'[problem]\nfactory = "ward_model:problem"\narguments = {{ data = "{data.absolute()}" }}\n'
    )


def shard(ward: int) -> dict[str, np.ndarray]:
    """A ward's sixty images, in halves with two classes each."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(labels))
    mine = order[ward::30]
    train, validation = np.array_split(mine, 2)
    return {
        "train_images": images[train],
        "train_labels": labels[train],
        "validation_images": images[validation],
        "validation_labels": labels[validation],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    main(parser.parse_args().out)
