"""Small federations on disk: an app folder, sites with their own files, keys."""

import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

import privbo as pb
from accountant.ledger import Ledger
from privbo.door.payload import decode_release
from privbo.flower import server
from privbo.flower.answers import client_app
from privbo.flower.party import AppFiles, approve_files, ledger_path, read_party, read_site
from privbo.flower.registry import read_federation
from privbo.flower.scaffold import write_app, write_guardian
from privbo.plans.policy import Policy
from privbo.protocol.files import load_arrays
from privbo.protocol.messages import FloatArray, Release
from privbo.runs.manifest import RunDirectory
from tests.conformance.small import N_CLIENTS, ROUNDS, problem as small
from tests.deployment.grid import LoopGrid, Node

SPACE = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "y": {"type": "real", "low": 1e-3, "high": 1e1, "log": True}}
ALGORITHMS = {
    "dp-fts-de": {"type": "dp-fts-de", "n_features": 12},
    "fed-pne": {"type": "fed-pne", "horizon": 400, "c": 0.02, "release_when": "always"},
}
# Allows whatever these tests play: they are about something else.
POLICY = {"epsilon": 1e5, "delta": 1e-6, "noise": ["secure", "exact", "simulation"], "no_privacy": True}
SITES = {"north": "0-2", "south": "3, 4", "west": "5-6"}


@dataclass(frozen=True)
class Federation:
    """An app's folder and its sites' files under one root."""

    root: Path
    sites: tuple[str, ...] = tuple(SITES)

    @property
    def home(self) -> Path:
        return self.root / "app"

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.root / "server" / "run")

    def site_file(self, name: str) -> Path:
        return self.root / name / "site.toml"

    def hold(self, name: str) -> Path:
        """While this file stands, the site's clients wait (of a federation made with ``held``)."""
        return self.root / name / "hold"

    @property
    def party_files(self) -> list[Path]:
        """Settings of all sites and guardians."""
        return sorted([*self.root.glob("*/site.toml"), *self.root.glob("*/guardian.toml")])

    def approve(self) -> None:
        """Let every party approve the app's files as they are now."""
        files = AppFiles.read(self.home)
        for path in self.party_files:
            approve_files(path, read_party(path), files)

    def nodes(self, *, approved: bool = True, **changes) -> list[Node]:
        if approved:
            self.approve()
        app, entries = client_app(self.home), read_federation(self.home).sites
        return [
            Node(
                node_id=100 + index,
                app=app,
                node_config={"site": str(self.site_file(name))},
                run_config={"directory": str(self.run.path)},
                public_key=(entries[name].public_key or "").encode(),
                **changes,
            )
            for index, name in enumerate(self.sites)
        ]

    def guardians(self) -> list[Node]:
        app = client_app(self.home)
        paths = sorted(self.root.glob("*/guardian.toml"))
        return [Node(node_id=200 + i, app=app, node_config={"guardian": str(path)}) for i, path in enumerate(paths)]

    def everyone(self) -> list[Node]:
        """Nodes of all sites and guardians."""
        return [*self.nodes(), *self.guardians()]

    def play(
        self, nodes: list[Node] | None = None, pushed: Callable[[list[Message]], object] = lambda _: None
    ) -> LoopGrid:
        grid = LoopGrid(self.everyone() if nodes is None else nodes, pushed)
        server.serve(grid, self.home, self.run)
        return grid


def unasked() -> AbstractContextManager[object]:
    """Servers do not ask beforehand whether sites are ready."""
    return mock.patch.object(server, "require_ready")


def public_key() -> str:
    """Of a pair that nobody else has, as OpenSSH writes it."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def make(
    root: Path,
    algorithm: dict | str = "fed-pne",
    *,
    rounds: int = ROUNDS,
    seed: int | None = 3,
    privacy: dict | None = None,
    factory: str = "tests.conformance.small:problem",
    sites: dict[str, str] = SITES,
    keys: dict[str, str] | bool = False,
    arguments: dict | None = None,
    n_clients: int = N_CLIENTS,
    problem: dict | None = None,
    held: bool = False,
    simulated: bool = False,
    final: str | None = None,
    policy: dict | None = POLICY,
    guardians: tuple[str, ...] = (),
    **federation,
) -> Federation:
    """Write a federation of three sites; simulated noise and one seed unless told otherwise; one policy for all."""
    made = Federation(root, tuple(sites))
    write_app(made.home, n_sites=len(sites), clients_per_site=1, epsilon=1e5, delta=1e-6)
    project = (made.home / "pyproject.toml").read_text()
    (made.home / "pyproject.toml").write_text(project.replace(str((made.home / "run").absolute()), str(made.run.path)))
    # Simulated nodes have no file of their own that could name the objective.
    stated = {"n_clients": n_clients, "space": SPACE, "name": "bumps"} | ({"factory": factory} if simulated else {})
    run = {
        "name": "federated",
        "rounds": rounds,
        "problem": problem or stated,
        "algorithm": ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm,
        "privacy": privacy or {"noise_multiplier": 1.0, "noise": "simulation"},
    } | {name: value for name, value in {"seed": seed, "final": final}.items() if value is not None}
    (made.home / "run.toml").write_text(tomli_w.dumps(run))
    entries = {name: {"clients": clients} for name, clients in sites.items()}
    for name in sites if keys else ():
        entries[name]["public_key"] = public_key() if keys is True else keys[name]
    settings = {"round_timeout": 120.0, "start_timeout": 5.0, "sites": entries} | federation
    (made.home / "federation.toml").write_text(tomli_w.dumps(settings))
    if policy is POLICY:
        asked = privacy or {}
        policy = policy | {"unit": asked.get("unit", "client"), "trust": [asked.get("trust", "server")]}
    for name in sites:
        made.site_file(name).parent.mkdir(parents=True)
        own = {"factory": factory} | ({"arguments": arguments} if arguments else {})
        if held:
            own = {"factory": "tests.deployment.held:problem", "arguments": {"hold": str(made.hold(name))}}
        site = {"name": name, "directory": "kept", "problem": own}
        made.site_file(name).write_text(tomli_w.dumps(site | ({} if policy is None else {"policy": policy})))
    for name in guardians:
        bound = Policy(epsilon=policy["epsilon"], delta=policy["delta"])
        with (made.home / "federation.toml").open("a") as file:
            file.write("\n" + write_guardian(root / name, name, bound))
        change(root / name / "guardian.toml", policy=policy)
    return made


def change(path: Path, **tables: object) -> None:
    """Put other tables into a file of settings; None takes one away."""
    changed = tomllib.loads(path.read_text()) | tables
    path.write_text(tomli_w.dumps({name: value for name, value in changed.items() if value is not None}))


# ---- what a federated run left behind: releases on the server, evaluations at the sites

KINDS = {"dp-fts-de": pb.DPFTSDE(n_features=12), "fed-pne": pb.FedPNE(horizon=400, c=0.02, release_when="always")}


def ledger_of(federation: Federation, site: str) -> Ledger:
    """A site's ledger of all runs."""
    return Ledger.open(ledger_path(read_site(federation.site_file(site))))


def releases(federation: Federation) -> list[Release]:
    with pb.load(federation.run.path).ledger as ledger:
        assert ledger.verify().ok
        return [decode_release(ledger.stored_release(entry.release_id))[0] for entry in ledger.entries()]


def sites(federation: Federation) -> list[dict[str, np.ndarray]]:
    """Every site's evaluations, from its own disk."""
    folders = [federation.root / site / "kept" for site in SITES]
    return [load_arrays(next(folder.glob("*/evaluations.npz"))) for folder in folders]


def queried(units: FloatArray, values: FloatArray) -> list[FloatArray]:
    """Every client's queries in order; cohorts pad clients that ask less often than others."""
    return [mine[np.isfinite(seen)] for mine, seen in zip(units, values, strict=True)]


def in_process(name: str = "fed-pne", rounds: int = ROUNDS) -> pb.Record:
    """The run of ``federations.make`` in one process."""
    privacy = pb.Privacy(noise_multiplier=1.0, noise="simulation")
    return pb.run(small(), KINDS[name], privacy=privacy, rounds=rounds, seed=3)


def require_same(federation: Federation, expected: pb.Record, found: list[dict[str, np.ndarray]] | None = None) -> None:
    """Hold releases and every client's queries to those of one process."""
    made = releases(federation)
    assert len(made) == len(expected.releases) > 0
    for ours, theirs in zip(made, expected.releases, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)
        assert (ours.noise_stddev, ours.sequence) == (theirs.noise_stddev, theirs.sequence)
    queries = [q for site in found or sites(federation) for q in queried(site["units"], site["values"])]
    for ours, theirs in zip(queries, queried(expected.clients.units, expected.clients.values), strict=True):
        assert len(np.unique(ours, axis=0)) > 1
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
