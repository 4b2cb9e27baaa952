"""Start the federation of ``make_federation.py`` on this machine and play its run: ``python run.py OUT``.

On four machines the same commands run one per machine (docs/deployment.md).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from privbo.flower.launch import QUIET_NOTE, Deployment

HERE = Path(__file__).parent


def main(out: Path) -> None:
    """TLS, node authentication, three hospitals."""
    print(QUIET_NOTE)
    keys = out / "keys"
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])  # where ward_model is "installed"
    with Deployment(root=out / "processes", certificates=keys, environment={"PYTHONPATH": path}) as deployment:
        deployment.start_superlink()
        hospitals = sorted(path.parent for path in out.glob("*/site.toml"))
        for hospital in hospitals:
            deployment.flwr("supernode", "register", str(keys / f"{hospital.name}.pub"), timeout=60)
            deployment.start_supernode(hospital.name, hospital / "site.toml", key=hospital / "node.key")
        directory = (out / "server" / "run").absolute()
        deployment.play(out / "server" / "app", "--run-config", f'directory="{directory}"', show=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    main(parser.parse_args().out)
