"""``python -m tests.docs.reach FOLDER``: the search of a built site, which works from disk, finds every public name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import accountant
import accountant.ledger
import privbo
import privbo.testing

PACKAGES = (privbo, accountant, accountant.ledger, privbo.testing)
# Tools that readers search for, each with an answer, which may be that it is not supported.
WORDS = ("optuna", "mlflow", "tensorboard", "wandb", "dask", "ray", "opacus", "flower")


def index_of(folder: Path) -> dict[str, Any]:
    """Read the index that the site's search loads as a script."""
    text = (folder / "searchindex.js").read_text()
    found: dict[str, Any] = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    return found


def lost(index: dict[str, Any]) -> list[str]:
    """Give public names and tools that the search would not find."""
    documented = {entry[4].rpartition(".")[2] for entries in index["objects"].values() for entry in entries}
    names = {f"{package.__name__}.{name}": name for package in PACKAGES for name in package.__all__}
    words = index["terms"].keys() | index["titleterms"].keys()
    return sorted(
        [full for full, name in names.items() if name not in documented] + [w for w in WORDS if w not in words]
    )


if __name__ == "__main__":
    missing = lost(index_of(Path(sys.argv[1])))
    print("\n".join(f"the search does not find {name}" for name in missing) or "the search finds every public name")
    sys.exit(bool(missing))
