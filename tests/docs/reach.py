"""``python -m tests.docs.reach FOLDER``: the search of a built site, which works from disk, finds every public name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import accountant
import accountant.ledger
import privbo
import privbo.flower
import privbo.testing

PACKAGES = (privbo, accountant, accountant.ledger, privbo.testing, privbo.flower)
# Tools that readers search for, each with an answer, which may be that it is not supported.
WORDS = ("optuna", "mlflow", "tensorboard", "wandb", "dask", "opacus", "flower")


def index_of(folder: Path) -> dict[str, Any]:
    """Read the index that the site's search loads as a script."""
    text = (folder / "searchindex.js").read_text()
    found: dict[str, Any] = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    return found


def lost(index: dict[str, Any]) -> list[str]:
    """Give public names and tools that the search would not find; another object of the same name does not count."""
    documented = {
        f"{prefix}.{entry[4]}".lstrip(".") for prefix, entries in index["objects"].items() for entry in entries
    }

    def is_found(package: ModuleType, name: str) -> bool:
        elsewhere = (full for full in documented if full.endswith(f".{name}"))
        return f"{package.__name__}.{name}" in documented or any(
            resolve_name(full) is getattr(package, name) for full in elsewhere
        )

    words = index["terms"].keys() | index["titleterms"].keys()
    names = [(package, name) for package in PACKAGES for name in package.__all__]
    return sorted(
        [f"{package.__name__}.{name}" for package, name in names if not is_found(package, name)]
        + [word for word in WORDS if word not in words]
    )


if __name__ == "__main__":
    missing = lost(index_of(Path(sys.argv[1])))
    print("\n".join(f"the search does not find {name}" for name in missing) or "the search finds every public name")
    sys.exit(bool(missing))
