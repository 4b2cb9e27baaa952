"""Templates of the thin app that Flower loads: files around the installed package."""

from __future__ import annotations

from pathlib import Path

from privbo.guardians.keys import guardian_keys
from privbo.plans.policy import Policy
from privbo.protocol.errors import ConfigurationError

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A privbo run over Flower"
license = "Apache-2.0"
# Installed on every machine beforehand; nothing is installed when a run starts.
dependencies = []

[tool.flwr.app]
publisher = "privbo"

[tool.flwr.app.components]
serverapp = "federated_app:server"
clientapp = "federated_app:client"

[tool.flwr.app.config]
directory = "{directory}"  # the run's directory on the server's machine; the ledger is in it
policy-epsilon = {epsilon}  # of sites that Flower simulates; every other site has a [policy] in its own site.toml
policy-delta = {delta}
"""

_APP = '''"""The two apps that Flower loads, for server and sites; everything is in run.toml and federation.toml."""

from pathlib import Path

from privbo.flower import client_app, server_app

HOME = Path(__file__).parent
server = server_app(HOME)
client = client_app(HOME)
'''

_RUN = """# An ordinary configuration: `privbo run run.toml --dry-run` prints plan and price.
name = "{name}"
rounds = 10

[problem]
n_clients = {n_clients}
objective = "objective:score"  # a site may name its own in its site.toml
space = {{ x = {{ type = "real", low = 0.0, high = 1.0 }} }}

[algorithm]
type = "shared-prior"

[privacy]
epsilon = {epsilon}  # half of what the sites below sites/ allow over all runs
delta = {delta}
"""

_FEDERATION = """# Public and fixed for the run: which clients live where. Without keys it is for trying out only.
round_timeout = 300.0
start_timeout = 120.0
min_sites = 1
"""

_PARTY = """# Private to this {party}. `privbo flower approve` adds the digests of files whose runs it may serve.
name = "{name}"
directory = "kept"

[policy]  # over all runs together on {whose}; docs/deployment.md has more
epsilon = {epsilon}
delta = {delta}
"""

_OBJECTIVE = '''"""The objective: runs at the sites, where the data is."""


def score(client: int, params: dict) -> float:
    """Larger is better; replace by your own."""
    return 1.0 - (params["x"] - 0.3 - 0.001 * client) ** 2
'''


def write_app(
    directory: Path, *, n_sites: int, clients_per_site: int, epsilon: float, delta: float, n_guardians: int = 0
) -> list[Path]:
    """Write a thin app with ``n_sites`` sites to try out, and each site's own file; returns the files.

    Args:
        directory: A new folder, or one without an app.
        n_sites: Number of sites.
        clients_per_site: Number of clients at every site.
        epsilon: Bound of every site's policy on all runs together; the run written here takes half of it.
        delta: Where the bound holds; the run's, too.
        n_guardians: Number of guardians, whose keys are made below ``guardians/``; 0 for a server that is trusted.

    Raises:
        ConfigurationError: If the folder holds an app already, there is one guardian only, or a bound out of range.

    Example:
        >>> import tempfile
        >>> home = Path(tempfile.mkdtemp()) / "trial"
        >>> [path.name for path in write_app(home, n_sites=2, clients_per_site=5, epsilon=4, delta=1e-6)][:3]
        ['pyproject.toml', 'federated_app.py', 'run.toml']
    """
    if n_guardians == 1:
        raise ConfigurationError("guardians=1: one guardian would see every vector; name two or more, or none")
    if (directory / "pyproject.toml").exists():
        raise ConfigurationError(f"{directory} already holds an app; name a new folder")
    name, bound = directory.absolute().name.lower(), Policy(epsilon=epsilon, delta=delta)
    values = {"name": name, "directory": (directory / "run").absolute(), "n_clients": n_sites * clients_per_site}
    trust = "" if not n_guardians else f'trust = "guardians"\nguardians = {n_guardians}\n'
    files = {
        "pyproject.toml": _PROJECT.format(**values, epsilon=bound.epsilon, delta=bound.delta),
        "federated_app.py": _APP,
        "run.toml": _RUN.format(**values, epsilon=bound.epsilon / 2, delta=bound.delta) + trust,
        "objective.py": _OBJECTIVE,
        "federation.toml": _federation(n_sites, clients_per_site),
        ".gitignore": "run/\nsites/\nguardians/\nflower/\n__pycache__/\n",  # what stays on this machine
    }
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (directory / file).write_text(content)
    for name in (f"site{number}" for number in range(n_sites)):
        files |= {f"sites/{name}/site.toml": ""}
        _write_party(directory / "sites" / name / "site.toml", "this site's people", name, bound)
    for name in (f"guardian{number + 1}" for number in range(n_guardians)):
        with (directory / "federation.toml").open("a") as registry:
            registry.write("\n" + write_guardian(directory / "guardians" / name, name, bound))
    return [directory / file for file in files]


def _federation(n_sites: int, clients_per_site: int) -> str:
    sites = "".join(
        f'\n[sites.site{site}]\nclients = "{site * clients_per_site}-{(site + 1) * clients_per_site - 1}"\n'
        for site in range(n_sites)
    )
    return _FEDERATION + sites


def write_guardian(folder: Path, name: str, policy: Policy) -> str:
    """Make a guardian's keys and ``guardian.toml``, where they are missing; returns its lines of federation.toml.

    Args:
        folder: The guardian's own.
        name: Its name in federation.toml.
        policy: Its bound on all runs together.

    Raises:
        RunError: If what stands there is no key.
    """
    card = guardian_keys(folder / "kept").card
    if not (folder / "guardian.toml").exists():
        _write_party(folder / "guardian.toml", "the people it guards", name, policy)
    return f'[guardians.{name}]\nsealing = "{card.sealing}"\nsigning = "{card.signing}"\n'


def _write_party(path: Path, whose: str, name: str, policy: Policy) -> None:
    """Write a party's own settings with its policy's bound; its state is kept in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _PARTY.format(party=path.stem, whose=whose, name=name, epsilon=policy.epsilon, delta=policy.delta)
    path.write_text(text)
