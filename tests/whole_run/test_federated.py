"""Neighbouring worlds of a federation: what the server leaves and says differs in each round's sum alone.

Clinic 2 has a site of its own. In its other worlds its objective answers otherwise or fails, or its machine is away,
sends rubbish, or loses its replies. ``make slow`` plays them through Flower's messages without sockets.
"""

import contextlib
import gc
import hashlib
import io
import itertools
import math
import os
import shutil
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Message, RecordDict
from scipy.stats import chi2

import privbo as pb
from accountant import Gaussian, numerical, repeat
from accountant.ledger import Ledger
from privbo.door.noise import SecureNoise
from privbo.door.payload import decode_release
from privbo.door.shares import NoisySum, sum_shares
from privbo.guardians import ciphertexts
from privbo.guardians.ciphertexts import GuardianKeys
from privbo.runs import guarded
from tests.cli.test_cli import privbo
from tests.conformance.cases import CASES, Case
from tests.deployment.federations import Federation, make
from tests.whole_run import clinic, worlds
from tests.whole_run.test_whole_run import BY_CLIENT, configuration

SITES = {"north": "0-1", "single": "2", "west": "3-5"}
LOOKS = ("report", "report --json", "ledger verify", "ledger export", "ledger receipt", "bundle")


def rubbish(reply: Message, _: int) -> Message | None:
    reply.content = RecordDict()
    return reply


# What is other about the node of the clinic's site.
NODES = {
    "away": {"online": False},
    "loses": {"tamper": lambda reply, _: None},
    "rubbish": {"tamper": rubbish},
}


def federation_of(root, algorithm: str) -> Federation:
    shutil.rmtree(root, ignore_errors=True)
    clients = {"sites": SITES, "n_clients": clinic.N_CLIENTS, "factory": "tests.whole_run.clinic:problem"}
    times = {"round_timeout": 2.0, "start_timeout": 1.0}
    return make(root, algorithm, privacy={"noise_multiplier": 1.0}, **clients, **times)


def looked_at(federation: Federation) -> dict[str, object]:
    """What the server's directory shows, and what commands say of it."""
    seen: dict[str, object] = {}
    home = federation.run.path
    (federation.run.private / "signing.key").write_bytes(bytes(range(32)))
    for look in ("", *LOOKS):
        if look:
            done = privbo(*look.split(), str(home))
            gc.collect()  # as the end of a process
            seen[look] = (done.returncode, done.stdout, done.stderr)
        seen |= {f"{look}: {file}": found for file, found in worlds.files_of(home, {}, timed=not look)}
    return seen


def play_federation(root, algorithm: str, world: str, earlier: worlds.Outcome | None = None) -> worlds.Outcome:
    """Play a federation without sockets."""
    feed, said = worlds.Feed(None if earlier is None else earlier.releases), io.StringIO()
    clinic.forget()
    with worlds.world_of(world), worlds.same_secrets(), feed.at_work(), worlds.older_objects_left_alone():
        federation = federation_of(root, algorithm)
        nodes = federation.nodes()
        vars(nodes[list(SITES).index("single")]).update(NODES.get(world, {}))
        elsewhere = mock.patch.object(clinic, "talk")  # a site's terminal is its own
        with elsewhere, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            federation.play(nodes)
        seen = looked_at(federation)
    return worlds.Outcome({"serve": said.getvalue()} | seen, feed.made, feed.drawn)


WORLDS = [("plain", "absent"), ("absent", "changed"), ("absent", "hostile"), ("absent", "away"), ("plain", "rubbish")]
WORLDS += [("plain", "loses"), ("plain", "slow")]


@pytest.mark.slow
@pytest.mark.parametrize("pair", WORLDS, ids=str)
@pytest.mark.parametrize("algorithm", ["fed-pne", "dp-fts-de"])
def test_nothing_but_a_rounds_sum_tells_the_worlds_of_a_federation_apart(algorithm, pair, tmp_path) -> None:
    first = play_federation(tmp_path / "world", algorithm, pair[0])
    second = play_federation(tmp_path / "world", algorithm, pair[1], first)
    moves = worlds.require_alike(first, second)
    if pair[1] in ("absent", "changed", "rubbish", "loses"):
        assert max(moves) > 0, "the worlds are one"


# ---- neighbouring worlds of a run with three guardians, as each of those sees them who are not trusted

GUARDIANS = 3
FALSE_ALARM = 1e-8
CASE = Case(name="dp-fts-de", algorithm=pb.DPFTSDE(n_features=32, n_init=1))
VIEWS = {"outsiders": 3, "guardian": 2, "coalition": 1}
# Nobody has the norms here.
EVERYTHING = tuple(step for step in worlds.FULL if step not in (worlds.NORMS, worlds.NORMS[:-1]))


@dataclass
class Heard:
    """What clients shared: an ear where rows are split, for the audit alone."""

    sums: list[np.ndarray] = field(default_factory=list)
    parts: list[list[np.ndarray]] = field(default_factory=list)
    shares: list[bytes] = field(default_factory=list)

    @contextlib.contextmanager
    def at_work(self):
        split = ciphertexts.split

        def heard(units: np.ndarray, n_guardians: int) -> list[tuple[bytes, ...]]:
            made = split(units, n_guardians)
            self.sums.append(units.sum(axis=0))
            columns = list(zip(*made, strict=True))
            n = units.shape[1]
            self.parts.append([sum_shares(each, place=g, n_entries=n) for g, each in enumerate(columns)])
            self.shares += [share for shares in made for share in shares]
            return made

        with mock.patch.object(ciphertexts, "split", heard):
            yield


def keys_of(folder) -> GuardianKeys:
    """A guardian's keys are the same in every world."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = [hashlib.sha256(f"{kind} {folder.name}".encode()).digest() for kind in ("sealing", "signing")]
    return GuardianKeys(
        sealing=X25519PrivateKey.from_private_bytes(seeds[0]), signing=Ed25519PrivateKey.from_private_bytes(seeds[1])
    )


@contextlib.contextmanager
def same_shares():
    """Guardians' keys, ciphertexts' share ids and shares' seeds are the same in every world."""
    count = itertools.count()

    def words(n_bytes: int) -> bytes:
        return hashlib.shake_256(repr(("share", next(count))).encode()).digest(n_bytes)

    with mock.patch.object(guarded, "guardian_keys", keys_of), mock.patch.object(os, "urandom", words):
        yield


@dataclass(frozen=True)
class World:
    outcome: worlds.Outcome
    heard: Heard
    kept: dict[str, object]

    def released(self) -> list[str]:
        return [name for name in self.outcome.releases if not name.startswith("guardian")]

    def rounds(self):
        """Every round's noisy sums of the guardians, and one noise's standard deviation, both in grid units."""
        for name in self.released():
            release = decode_release(self.outcome.releases[name])[0]
            payloads = [self.outcome.releases[f"guardian{place + 1}: {name}"] for place in range(GUARDIANS)]
            totals = [NoisySum.decode(payload).total.view(np.uint64) for payload in payloads]
            whole = np.sum(totals, axis=0).view(np.int64)
            step = float(np.abs(release.values).max() / np.abs(whole).max())
            yield totals, release.noise_stddev / math.sqrt(GUARDIANS) / step

    def noises(self) -> np.ndarray:
        """Every guardian's noises in all rounds in units of what one should be, ``(guardians, entries)``."""
        found = [
            np.array([(total - part).view(np.int64) / stddev for total, part in zip(totals, parts, strict=True)])
            for (totals, stddev), parts in zip(self.rounds(), self.heard.parts, strict=True)
        ]
        return np.concatenate(found, axis=1)


def world(folder, name: str, case: Case, steps, earlier: worlds.Outcome | None = None) -> World:
    heard, tables = Heard(), {"run.toml": configuration(case, trust="guardians", guardians=GUARDIANS)}
    with heard.at_work(), same_shares():
        outcome = worlds.play(folder, tables, name, steps, earlier=earlier)
    return World(outcome, heard, kept_by_guardians(folder))


def kept_by_guardians(folder) -> dict[str, object]:
    """Everything on guardians' disks: rows of their ledgers, and what they stated."""
    found: dict[str, object] = {}
    for path in sorted((folder / worlds.HOME / "private" / "guardians").rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "ledger.sqlite":
            with Ledger.open(path) as ledger:
                found[name] = (ledger.book().rows, ledger.release_rows())
        elif path.suffix in (".json", ".npz"):
            found[name] = path.read_bytes()
    return found


def faults(first: World, second: World, most: float) -> list[str]:
    """What some view of two neighbouring worlds shows that it should not, in words."""
    found = [f"outsiders: {name}" for name in first.outcome.differences(second.outcome)]
    found += [f"a price: {words}" for words in worlds.underquoted(first.outcome)]
    found += [f"a guardian keeps: {n}" for n in first.kept if first.kept[n] != second.kept.get(n)]
    noises = first.noises()
    entries = noises.shape[1]
    for view, unknown in VIEWS.items():
        for some in itertools.combinations(range(GUARDIANS), unknown):
            left = float((noises[list(some)].sum(axis=0) ** 2).sum()) / unknown
            if not chi2.ppf(FALSE_ALARM, entries) < left < chi2.isf(FALSE_ALARM, entries):
                found.append(f"{view}: {left / entries:.2f} times the noise of guardians {some}")
    for one, other in itertools.combinations(range(GUARDIANS), 2):
        if abs(float(noises[one] @ noises[other])) > 6.0 * math.sqrt(entries):
            found.append(f"guardian: noises of {one} and {other} are one")
    sums = zip(first.rounds(), first.heard.sums, second.heard.sums, strict=True)
    for at, ((_, stddev), ours, theirs) in enumerate(sums):
        if (move := float(np.linalg.norm(ours - theirs)) / stddev) > most:
            found.append(f"coalition: round {at} moves by {move:.3f} of what one noise hides")
    counts = np.bincount(np.frombuffer(b"".join(first.heard.shares), dtype=np.uint8), minlength=256)
    mean = counts.sum() / 256
    if float(((counts - mean) ** 2).sum() / mean) > chi2.isf(FALSE_ALARM, 255):
        found.append("guardian: its shares are not uniform")
    return found


def audited(folder, pair: tuple[str, str], case: Case, steps) -> tuple[list[str], World, World]:
    first = world(folder / "world", pair[0], case, steps)
    begun = next(seen for name, seen in first.outcome.seen.items() if "run run.toml --out" in name)
    assert begun[0] == 0, begun
    second = world(folder / "world", pair[1], case, steps, first.outcome)
    assert first.outcome.drawn_again == second.outcome.drawn_again == []
    return faults(first, second, worlds.reach(case.name, pair)), first, second


def test_no_view_of_a_run_with_guardians_shows_more_than_its_price(tmp_path) -> None:
    found, first, second = audited(tmp_path, ("absent", "changed"), CASE, worlds.SHORT)
    assert found == []
    assert len(first.released()) == len(first.heard.sums) == 4
    assert any((a != b).any() for a, b in zip(first.heard.sums, second.heard.sums, strict=True)), "the worlds are one"
    plan = pb.load(tmp_path / "world" / worlds.HOME).plan
    for exposure in plan.exposures(1e-5):
        seen = repeat(Gaussian(noise_multiplier=math.sqrt(VIEWS[exposure.against])), plan.releases)
        least = numerical.epsilon_interval(seen, 1e-5, adjacency=plan.adjacency).lower
        assert least <= exposure.epsilon <= least * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("pair", BY_CLIENT)
@pytest.mark.parametrize("case", [CASE, *(case for case in CASES if case.unit == "client")], ids=str)
def test_no_view_of_any_algorithm_with_guardians_shows_more_by_any_command(case, pair, tmp_path) -> None:
    found, _, _ = audited(tmp_path, pair, case, EVERYTHING)
    assert found == []


class Less(SecureNoise):
    """A fault: half the noise that the plan says."""

    def gaussian(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return np.rint(0.5 * super().gaussian(shape, scale)).astype(np.int64)


class Same(SecureNoise):
    """A fault: every guardian has the same noise."""

    def gaussian(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return np.rint(np.random.default_rng(math.prod(shape)).normal(0, scale, shape)).astype(np.int64)


def with_noise(of: str, source: SecureNoise):
    """Some guardians of the run draw from another source."""
    real = guarded.noise_of

    def given(name: str, root: int, label: str):
        return source if of in label else real(name, root, label)

    return mock.patch.object(guarded, "noise_of", given)


def unmasked(units: np.ndarray, n_guardians: int) -> list[tuple[bytes, ...]]:
    """A fault: seeds are zero, so that the row under them is nearly in the clear to whoever tries."""
    rows = units.astype("<i8")
    return [(row.tobytes(), *[bytes(32)] * (n_guardians - 1)) for row in rows]


# A fault, and how the words begin that betray it.
PLANTED = {
    "a guardian with half its noise": (lambda: with_noise("guardian2", Less()), "coalition: 0.2"),
    "guardians with one noise": (lambda: with_noise("guardian", Same()), "guardian: noises of 0 and 1 are one"),
    "rows without masks": (lambda: mock.patch.object(ciphertexts, "split", unmasked), "guardian: its shares are not"),
}


@pytest.mark.parametrize(
    "fault", [name if "half" in name else pytest.param(name, marks=pytest.mark.slow) for name in PLANTED]
)
def test_a_planted_fault_is_betrayed(fault: str, tmp_path) -> None:
    plant, betrayed = PLANTED[fault]
    with plant():
        found, _, _ = audited(tmp_path, ("absent", "changed"), CASE, worlds.SHORT)
    assert any(words.startswith(betrayed) for words in found), found
