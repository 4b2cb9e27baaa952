"""The thin app that Flower loads: files around the installed package, from ``templates``."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from privbo.flower.party import GuardianSettings, read_settings_of
from privbo.flower.registry import require_names
from privbo.guardians.ciphertexts import guardian_keys
from privbo.plans.policy import Policy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import write_atomically
from privbo.protocol.settings import path_name

_FILES = ("pyproject.toml", "federated_app.py", "run.toml", "objective.py", "federation.toml")
_PRIVATE = "run/\nsites/\nguardians/\nflower/\n__pycache__/\n"  # what stays on this machine


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
    bound = Policy(epsilon=epsilon, delta=delta)
    sites = [f"site{number}" for number in range(n_sites)]
    values = {
        "name": path_name(directory.absolute().name.lower()),
        "directory": (directory / "run").absolute(),
        "policy": bound,
        "sites": sites,
        "clients_per_site": clients_per_site,
        "n_guardians": n_guardians,
    }
    made = [_write(directory / file, file, **values) for file in _FILES]
    write_atomically(directory / ".gitignore", _PRIVATE.encode())
    made += [
        _write_party(directory / "sites" / name / "site.toml", "this site's people", name, bound) for name in sites
    ]
    for name in (f"guardian{number + 1}" for number in range(n_guardians)):
        with (directory / "federation.toml").open("a") as registry:
            registry.write("\n" + write_guardian(directory / "guardians" / name, name, bound))
    return [*made, directory / ".gitignore"]


def write_guardian(folder: Path, name: str, policy: Policy) -> str:
    """Make a guardian's keys and ``guardian.toml``, where they are missing; returns its lines of federation.toml.

    Args:
        folder: The guardian's own.
        name: Its name in federation.toml.
        policy: Its bound on all runs together.

    Raises:
        ConfigurationError: If the name can't be one, or what stands there has another, or another bound.
        RunError: If what stands there is no key.
    """
    require_names([name])
    path = folder / "guardian.toml"
    if not path.exists():
        _write_party(path, "the people it guards", name, policy)
    own = read_settings_of(GuardianSettings, path)
    bound = None if own.policy is None else (own.policy.epsilon, own.policy.delta)
    if (own.name, bound) != (name, (policy.epsilon, policy.delta)):
        raise ConfigurationError(f"{path} has another name, epsilon or delta; give its own, or change them there")
    card = guardian_keys(folder / "kept").card
    return f'[guardians.{name}]\nsealing = "{card.sealing}"\nsigning = "{card.signing}"\n'


def _write_party(path: Path, whose: str, name: str, policy: Policy) -> Path:
    """Write a party's own settings with its policy's bound; its state is kept in the same folder."""
    return _write(path, "party.toml", party=path.stem, whose=whose, name=name, policy=policy)


def _write(path: Path, template: str, **values: object) -> Path:
    files = Environment(  # noqa: S701 (no page)
        loader=PackageLoader("privbo.flower"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, files.get_template(f"{template}.j2").render(values).encode())
    return path
