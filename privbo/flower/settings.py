"""The files of a federation.

``run.toml`` is an ordinary configuration; its problem may leave the objective out, because
objectives live at the sites. ``federation.toml`` stands beside it and is public::

    round_timeout = 300.0          # seconds; also start_timeout, min_sites

    [sites.north]
    clients = "0-9"
    public_key = "ecdsa-sha2-nistp384 AAAA..."   # every site's, or none's for trying out

    [guardians.ministry]           # with privacy.trust = "guardians": what `privbo flower guardian` prints
    sealing = "64 hexadecimal digits"
    signing = "64 hexadecimal digits"

A site keeps its own ``site.toml`` and shows it to nobody::

    name = "north"
    directory = "/var/lib/privbo"  # state, a ledger, and a record of everything it ever sent
    [policy]                       # without one the site refuses every question
    epsilon = 4.0                  # over all runs together on this site's people
    delta = 1e-6
    [[approved]]                   # files of runs that it may answer; written by `privbo flower approve`
    run = "64 hexadecimal digits"
    federation = "64 hexadecimal digits"
    [problem]                      # where this site's objective is; by default the run's
    factory = "ward_model:problem"
    arguments = { data = "/data/north" }
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field

from privbo.flower.registry import Registry, parse_clients
from privbo.guardians.keys import Card
from privbo.plans.policy import Policy
from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.problem import ProblemSource
from privbo.protocol.settings import Count, Positive, Sequence, dump_settings, read_settings, settings
from privbo.runs.spec import Spec, parse_toml, read_bytes, read_toml

RUN_FILE = "run.toml"
FEDERATION_FILE = "federation.toml"
Digest: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@settings(table="federation")
class Timeouts:
    """Waiting times of a federation, and the number of sites it waits for; public.

    Attributes:
        round_timeout: Seconds from asking to the end of a round; also the messages' time to live.
        start_timeout: Seconds to wait for nodes before the first round, and later while fewer
            than ``min_sites`` are connected.
        min_sites: Nodes without which no round is played.
        poll: Seconds between two looks at the grid.

    Raises:
        ConfigurationError: If a time is not a finite number of seconds above 0 or ``min_sites`` is below 1.
    """

    round_timeout: Positive = 300.0
    start_timeout: Positive = 300.0
    min_sites: Count = 1
    poll: Positive = 0.3


@settings(table="sites")
class SiteEntry:
    """One ``[sites.NAME]`` table."""

    clients: str
    public_key: str | None = None


@settings(table="federation")
class Federation:
    """``federation.toml``, checked for shape."""

    sites: Annotated[dict[str, SiteEntry], Field(min_length=1)]
    round_timeout: Positive = 300.0
    start_timeout: Positive = 300.0
    min_sites: Count = 1
    guardians: dict[str, Card] = field(default_factory=dict)

    def registry(self, n_clients: int) -> Registry:
        """Which clients live where.

        Raises:
            ConfigurationError: If clients or keys do not fit together.
        """
        return Registry(
            n_clients=n_clients,
            clients={name: parse_clients(site.clients) for name, site in self.sites.items()},
            keys={name: site.public_key for name, site in self.sites.items() if site.public_key is not None},
        )

    @property
    def timeouts(self) -> Timeouts:
        """Waiting times of the federation."""
        return Timeouts(round_timeout=self.round_timeout, start_timeout=self.start_timeout, min_sites=self.min_sites)


@settings(table="approved")
class Approved:
    """One ``[[approved]]`` table of a party: digests of files that its people have read."""

    run: Digest
    federation: Digest


@settings(table="site")
class SiteSettings:
    """``site.toml``, checked for shape; private to the site.

    Without ``policy`` the site refuses every question. It answers runs of approved files alone.
    """

    name: str
    directory: str
    policy: Policy | None = None
    problem: ProblemSource | None = None
    approved: Sequence[Approved] = ()

    @property
    def role(self) -> str:
        """What the party is."""
        return "site"


@settings(table="guardian")
class GuardianSettings:
    """``guardian.toml``, checked for shape; private to the guardian.

    As a site, it refuses everything without ``policy``, and guards runs of approved files alone.
    """

    name: str
    directory: str
    policy: Policy | None = None
    approved: Sequence[Approved] = ()

    @property
    def role(self) -> str:
        """What the party is."""
        return "guardian"


Party: TypeAlias = SiteSettings | GuardianSettings


def read_federation(home: Path) -> Federation:
    """The federation that stands in an app's folder.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    return federation_of(read_bytes(home / FEDERATION_FILE))


@lru_cache(maxsize=4)
def federation_of(content: bytes) -> Federation:
    """Read the content of a ``federation.toml``, once for all sites that one process plays."""
    return read_settings(Federation, parse_toml(content, FEDERATION_FILE), FEDERATION_FILE)


def read_site(path: Path) -> SiteSettings:
    """A site's own settings; its directory is taken relative to the file.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    site = read_settings(SiteSettings, read_toml(path), str(path))
    return dataclasses.replace(site, directory=str(path.parent.absolute() / site.directory))


def read_guardian(path: Path) -> GuardianSettings:
    """A guardian's own settings; its directory is taken relative to the file.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    own = read_settings(GuardianSettings, read_toml(path), str(path))
    return dataclasses.replace(own, directory=str(path.parent.absolute() / own.directory))


def read_party(path: Path) -> Party:
    """Read the settings of a site or guardian; the file's name says which.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    return read_guardian(path) if path.name.startswith("guardian") else read_site(path)


def require_guardians(federation: Federation, privacy: Privacy | NoPrivacy) -> dict[str, Card]:
    """Give the guardians' cards in the order of shares; empty where the server is trusted.

    Raises:
        ConfigurationError: If federation.toml names another number of guardians than the run has.
    """
    wanted = privacy.n_noises if privacy.trust == "guardians" else 0
    if len(federation.guardians) != wanted:
        raise ConfigurationError(
            f"{FEDERATION_FILE} names {len(federation.guardians)} guardians, run.toml has trust={privacy.trust!r} with "
            f"{wanted}; write a [guardians.NAME] table for each, or change privacy.trust"
        )
    return dict(federation.guardians)


def require_hidden(spec: Spec, registry: Registry) -> None:
    """Refuse to ask sampled clients alone where that would show the sample to those it has to be hidden from.

    Raises:
        ConfigurationError: Naming what is missing.
    """
    if not isinstance(spec.privacy, Privacy) or spec.privacy.channel != "anonymous":
        return
    missing = None
    if not registry.keys:
        missing = "nodes without keys can't be asked one by one; give every site a public_key"
    elif any(len(clients) > 1 for clients in registry.clients.values()):
        missing = (
            "whoever shares a site sees that it is asked, and acts or not by it; give every client a site of its own"
        )
    elif spec.times is None:
        missing = "how long a round lasts would show who is asked; declare a grid ([times] in run.toml)"
    elif spec.privacy.sampling != "poisson":
        missing = "a client that is not asked does not act, which is priced for coins alone; use sampling='poisson'"
    if missing is not None:
        raise ConfigurationError(f"privacy.channel='anonymous': {missing}, or use channel='open'")


def site_keys(federation: Federation, n_clients: int) -> dict[int, str]:
    """Digest of the public key of every client's site; empty words where sites have no keys."""
    registry = federation.registry(n_clients)
    digests = {
        site: hashlib.sha256(registry.key_of(site)).hexdigest() if site in registry.keys else ""
        for site in registry.sites
    }
    return {client: digests[site] for site, clients in registry.clients.items() for client in clients}


def public_spec(home: Path) -> Spec:
    """Read the run of a federation as its server knows it: the objective lives at the sites.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    return spec_of(home, read_bytes(home / RUN_FILE))


def site_spec(home: Path, content: bytes, site: SiteSettings) -> Spec:
    """Read the run in the content of a ``run.toml`` with the site's own problem, if any, and load the site's code.

    Raises:
        ConfigurationError: If the problem is another one than the run's.
    """
    own = spec_of(home, content, site.problem).loaded()
    if site.problem is not None:
        _require_same_problem(spec_of(home, content), own)
    return own


def timeouts_of(federation: Federation, spec: Spec) -> Timeouts:
    """Give the federation's waiting times; on a grid a round's answers are there before it ends."""
    if spec.times is None:
        return federation.timeouts
    patience = min(federation.round_timeout, spec.times.patience)
    return dataclasses.replace(federation.timeouts, round_timeout=patience)


def spec_of(home: Path, content: bytes, problem: ProblemSource | None = None) -> Spec:
    """Read the run in the content of a ``run.toml``; the modules it names may stand beside it.

    Args:
        home: Folder of the app.
        content: Of the file.
        problem: In place of the run's.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    here = str(home.absolute())
    if here not in sys.path:
        sys.path.insert(0, here)
    table = parse_toml(content, RUN_FILE)
    return Spec.from_dict(table if problem is None else {**table, "problem": dump_settings(problem)}, trusted=True)


def _require_same_problem(public: Spec, own: Spec) -> None:
    ours, theirs = own.problem, public.problem
    if ours.search_space != theirs.search_space or ours.n_clients != theirs.n_clients:
        raise ConfigurationError(
            f"this site's problem has space {dict(ours.search_space.parameters)!r} and {ours.n_clients} clients, the "
            f"run's {dict(theirs.search_space.parameters)!r} and {theirs.n_clients}; state the same space and N"
        )
