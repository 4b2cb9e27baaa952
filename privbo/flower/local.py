"""A whole federation on loopback, for trying an app out."""

from __future__ import annotations

from pathlib import Path

from privbo.flower.launch import Deployment
from privbo.flower.scaffold import write_site
from privbo.flower.settings import public_spec, read_federation
from privbo.protocol.errors import ConfigurationError


def play_locally(home: Path, *, n_sites: int) -> None:
    """Play an app's run with one SuperNode per site, all on this machine, and stop them again.

    Raises:
        ConfigurationError: If the settings are impossible, or name another number of sites.
        RunError: If the run does not end well; the same call goes on with it.
    """
    federation = read_federation(home)
    federation.registry(public_spec(home).problem.n_clients)
    if len(federation.sites) != n_sites:
        raise ConfigurationError(
            f"--clients {n_sites}: federation.toml registers {len(federation.sites)} sites; start one each"
        )
    if any(site.public_key is not None for site in federation.sites.values()):
        raise ConfigurationError("federation.toml names public keys; an app to try out has none (docs/deployment.md)")
    with Deployment(root=home / "flower") as deployment:
        deployment.start_superlink()
        for name in federation.sites:
            site = home / "sites" / name / "site.toml"
            if not site.exists():
                write_site(site, name)
            deployment.start_supernode(name, site)
        deployment.play(home, show=True)
