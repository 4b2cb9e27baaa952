"""Commands that read what somebody else made: no place and no code that its data names is followed unasked."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import privbo as pb
from privbo.cli.main import app
from privbo.flower.scaffold import write_app
from privbo.runs.spec import Spec
from tests.cli.test_cli import X, privbo, ran, toml
from tests.sources import ROOT
from tests.system_tools import require_tool

READING = {
    "audit": ["audit {run}", "audit {run} --empirical --trials 1000", "audit {run} --publish-norms 4"],
    "best": ["best {run}", "best {run} --common"],
    "bundle": ["bundle {run} --out {out}/bundle.json"],
    "compare": [
        "compare {run} --out {out}/compared --data public",
        "compare {run}/sweep.toml --finished --out {out}/swept",
    ],
    "flower approve": ["flower approve {home}/site.toml {run}"],
    "ledger export": ["ledger export {run}", "ledger export {run} --format csv"],
    "ledger left": ["ledger left {run} --delta 1e-5"],
    "ledger receipt": ["ledger receipt {run} --out {out}/receipt.json"],
    "ledger recover": ["ledger recover {run}"],
    "ledger show": ["ledger show {run}"],
    "ledger verify": ["ledger verify {run}"],
    "report": ["report {run} --statement", "report {run} --json", "report {run} --private"],
    "run": ["run --resume {run}", "run --resume {run} --dry-run", "run {run}/theirs.toml --dry-run"],
    "tell": ["tell {run} 0 1.0"],
    "trials": ["trials {run}"],
    "verify-bundle": ["verify-bundle {run}/bundle.json"],
    "watch": ["watch {run} --static {out}/watched.html --once", "watch {run} --private --static {out}/own.html --once"],
}
"""What every command that reads a run's directory, or files of one, is given."""
OWN = {
    "calibrate": "reads nothing",
    "check": "tries the user's own configuration out, and runs its code",
    "flower guardian": "writes a new folder",
    "flower init": "writes a new folder",
    "flower keys": "writes a new folder",
    "flower superlink": "is Flower's program",
    "flower supernode": "is Flower's program",
    "flower up": "plays the user's own app",
    "ledger make": "makes the ledger that the user's own configuration names",
    "quickstart": "runs the packaged example",
    "schema": "reads nothing",
    "scout": "runs the user's own configuration",
}
"""Commands that read nothing of somebody else's, and why."""


def commands(group: object, before: tuple[str, ...] = ()):
    """Names of all commands, as the command line itself knows them."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*before, name))
        else:
            yield " ".join((*before, name))


def test_every_command_is_known_as_one_that_reads_or_not() -> None:
    assert sorted(commands(typer.main.get_command(app))) == sorted([*READING, *OWN])
    assert all(line.startswith(f"{name} ") for name, lines in READING.items() for line in lines)


THEIRS = """
import dataclasses
from experiments.examples.zoom import Zoom
from tests.crash_problem import problem
Zoom = dataclasses.make_dataclass("Zoom", [], bases=(Zoom,), frozen=True, kw_only=True)
Zoom.__module__ = "theirs"
"""
SPRUNG = 'raise SystemExit("imported")\n'
FACTS, POLICY = {"factory": "theirs:problem", "n_clients": 6, "space": X}, {"epsilon": 90.0, "delta": 1e-5}
WHAT = {"name": "theirs", "rounds": 2, "problem": FACTS, "privacy": {"noise_multiplier": 8.0}, "policy": POLICY}
CONFIG, PRICED = toml(**WHAT, algorithm={"type": "theirs:Zoom", "n_candidates": 2}), toml(**WHAT)
LEDGER = '[ledger]\npopulation = "ward"\npath = "{path}"\n'
DATABASE = "postgresql://reader@127.0.0.1:{port}/ward?commits={commit_log}"
SWEEP = 'name = "swept"\nconfig = "theirs.toml"\ndata = "public"\n[grid]\n"rounds" = [1, 2]\n'


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Where somebody reads: the folder they stand in, their home, what they were sent, and whom it was made by."""

    here: Path
    stranger: Path

    @property
    def sent(self) -> Path:
        return self.here / "sent"

    def environment(self, who: str) -> dict[str, str]:
        home = self.here / who
        home.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "XDG_"))}
        own = {"HOME": str(home), "TMPDIR": str(home), "XDG_STATE_HOME": str(home / "state")}
        return kept | own | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def planted(run: Path, place: str) -> None:
    """Name another place in a run's manifest, as its maker would, and an algorithm whose price needs no code."""
    content = json.loads((run / "config.json").read_text())
    content["spec"]["algorithm"] = {"type": "dp-fts-de", "n_features": 8}
    content["spec"]["ledger"] = (content["spec"]["ledger"] or {}) | {"path": place, "population": "ward"}
    content["digest"] = Spec.from_dict(content["spec"]).digest()
    (run / "config.json").write_text(json.dumps(content))
    (run / "theirs.toml").write_text(PRICED + LEDGER.format(path=place))
    (run / "sweep.toml").write_text(SWEEP)


DRIVER = """
import contextlib, io, json, os, sys, warnings
import cryptography.hazmat.primitives.asymmetric.ed25519, matplotlib.font_manager  # which ask the system once
from privbo.cli.main import main
found = []
for index, line in enumerate(json.load(sys.stdin)):
    with contextlib.suppress(OSError):
        os.open(f"/privbo-command/{index}", os.O_RDONLY)
    sys.argv, code = ["privbo", *line.split()], 0
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    found.append([code, err.getvalue(), out.getvalue()])
print(json.dumps(found))
"""


def played(lines, *, cwd, env, under=()):
    """Exit code, errors and output of commands, one after another in a process of their own."""
    command = [*under, sys.executable, "-P", "-c", DRIVER]
    done = subprocess.run(
        command, cwd=cwd, env=env, input=json.dumps(lines), capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Reader:
    """Directories that a stranger made and sent: with code of its own, and each with a place that is not inside."""
    found = Reader(here=tmp_path_factory.mktemp("reader"), stranger=tmp_path_factory.mktemp("stranger"))
    ledger = LEDGER.format(path=found.stranger / "people.sqlite")
    (found.stranger / "theirs.py").write_text(THEIRS)
    for name, text in (("own", CONFIG), ("shared", CONFIG + ledger)):
        (found.stranger / f"{name}.toml").write_text(text)
        lines = [f"run {name}.toml --out {name}", f"bundle {name}"]
        made = played(lines, cwd=found.stranger, env=found.environment("maker"))
        assert [code for code, *_ in made] == [0, 0], made
        (found.stranger / name / "theirs.toml").write_text(text)
        (found.stranger / name / "sweep.toml").write_text(SWEEP)
    for name in ("own", "asked", "database", "links", "commits", "tail", "site", "training"):
        shutil.copytree(found.stranger / "own", found.sent / name)
    for name in ("file", "relative"):
        shutil.copytree(found.stranger / "shared", found.sent / name)
    planted(found.sent / "database", DATABASE.format(port=1, commit_log=found.here / "commits"))
    (found.here / "own").mkdir()
    (found.here / "home").mkdir()
    planted(found.sent / "relative", os.path.relpath(found.stranger / "people.sqlite", found.here / "own"))
    write_app(found.stranger / "app", n_sites=2, clients_per_site=3, epsilon=20.0, delta=1e-5)
    shutil.copy(found.stranger / "app" / "sites" / "site0" / "site.toml", found.here / "home")
    for run in found.sent.iterdir():
        shutil.copy(found.stranger / "app" / "federation.toml", run)
        shutil.copy(run / "theirs.toml", run / "run.toml")
    (found.sent / "own" / "run.toml").write_text(PRICED)
    elsewhere = found.here / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "trials.jsonl").touch()
    shutil.rmtree(found.sent / "asked" / "private")
    (found.sent / "asked" / "private").symlink_to(elsewhere)
    secret = found.here / "secret"
    secret.write_text('{"mine": 1}\n')
    (found.here / "own" / "theirs.py").write_text(SPRUNG)
    for folder, names in {
        "links": ("history.jsonl", "private/clipping.jsonl", "private/evaluations.npz"),
        "commits": ("ledger.sqlite.commits",),
        "tail": ("ledger.sqlite-wal",),
        "site": ("facts.json", "evaluations.npz", "common.json", "config.json"),
        "training": ("search.json", "training.sqlite", "validation.sqlite", "config.json"),
    }.items():
        for name in names:
            (found.sent / folder / name).unlink(missing_ok=True)
            if name != "config.json":
                (found.sent / folder / name).symlink_to(secret)
    return found


@pytest.mark.parametrize("name", ["database", "file", "relative"])
def test_a_strangers_run_opens_no_ledger_elsewhere_unless_the_reader_names_it(name, reader, monkeypatch):
    monkeypatch.chdir(reader.here / "own")
    run = reader.sent / name
    place = json.loads((run / "config.json").read_text())["spec"]["ledger"]["path"]
    with pytest.raises(pb.RunError, match="is not opened unasked; if you know it, add --ledger") as caught:
        pb.load(run)
    assert place in str(caught.value)
    done = privbo("report", run)
    assert (done.returncode, done.stderr.strip()) == (2, f"privbo: {caught.value}")
    if name == "database":
        return
    before = (reader.stranger / "people.sqlite").read_bytes()
    for command in ("report {} --json", "ledger verify {}", "ledger show {}", "watch {} --static ../w.html --once"):
        words = command.format(run).split()
        ran(*words, ends=2)
        if name == "file":  # the other's manifest was changed since its ledger was made
            ran(*words, "--ledger", place)
    assert (reader.stranger / "people.sqlite").read_bytes() == before
    if name == "file":
        with pb.load(run, ledger=reader.stranger / "people.sqlite").ledger as ledger:
            assert ledger.verify().ok


def test_ones_own_run_opens_the_ledger_that_it_names_and_anybodys_the_one_inside(tmp_path, monkeypatch):
    ours = PRICED.replace("theirs:", "tests.crash_problem:")
    own, inside = tmp_path / "own", tmp_path / "inside"
    for run, place in ((own, tmp_path / "people.sqlite"), (inside, inside / "people.sqlite")):
        (tmp_path / "run.toml").write_text(ours + LEDGER.format(path=place))
        ran("run", tmp_path / "run.toml", "--out", run)
        ran("ledger", "verify", run)
    for suffix in ("", ".commits"):
        shutil.move(f"{tmp_path}/people.sqlite{suffix}", f"{tmp_path}/moved.sqlite{suffix}")
    moved = str(tmp_path / "moved.sqlite")
    ran("ledger", "verify", own, ends=3)
    ran("ledger", "verify", own, "--ledger", moved)
    planted(own, moved)
    assert "not made by this user" in privbo("ledger", "verify", own).stderr
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    ran("ledger", "verify", inside)


CALL = re.compile(r"^\d+ +(?P<call>\w+)\((?P<rest>.*)$", re.MULTILINE)
ASKED = re.compile(r'(?:AT_FDCWD(?:<[^>]*>)?, |\d+<(?P<folder>[^>]*)>, )?"(?P<path>[^"]*)"')
GIVEN = re.compile(r"= \d+<(?P<path>/[^>]*)>$")


def watched(reader: Reader, lines: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, errors and trace of commands, one after another in one process: what it opens, starts or reaches."""
    log = reader.here / "trace"
    calls = "trace=network,openat,open,execve,execveat"
    strace = ("strace", "-f", "-qq", "-y", "-s", "4096", "-e", calls, "-o", str(log))
    said = played(lines, cwd=reader.here / "own", env=reader.environment("home"), under=strace)
    parts = re.split(r'openat\([^"]*"/privbo-command/\d+".*\n', log.read_text())
    assert len(parts) == len(lines) + 1
    return [(code, err, text) for (code, err, _), text in zip(said, parts[1:], strict=True)]


def strays(trace: str, reader: Reader, run: Path) -> list[str]:
    """What a command opened, started or reached though it lies neither in the directory nor in what is the reader's.

    Of a link both its own path and the one that it led to.
    """
    opened, others = set(), []
    for call, rest in ((match["call"], match["rest"]) for match in CALL.finditer(trace)):
        if call in ("open", "openat"):
            asked, given = ASKED.match(rest), GIVEN.search(rest)
            place = reader.here / "own" / (asked["folder"] or "") / asked["path"] if asked else rest
            opened |= {os.path.normpath(place), *([given["path"]] if given else [])}
        elif call.startswith("exec") or "AF_INET" in rest or call == "connect":
            others.append(rest)
    system = tuple(map(Path, ("/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev")))
    ours = (ROOT / "privbo", ROOT / "accountant", ROOT / "privbo.egg-info")  # the last is an editable installation's
    allowed = (run, reader.here / "home", reader.here / "out", Path(sys.prefix), Path(sys.base_prefix), *ours)

    def lies_in(path: str, folders) -> bool:
        return any(Path(path).is_relative_to(folder) for folder in folders)

    # What was made here may lie in /dev/shm. An editable installation looks for a folder of this name wherever it
    # stands; the other is where it is installed.
    return others + [
        path
        for path in sorted(opened)
        if not lies_in(path, allowed)
        and (lies_in(path, [reader.here.parent]) or not lies_in(path, system))
        and path != str(ROOT)
        and "/__editable__." not in path
    ]


@pytest.mark.system
def test_no_reading_command_leaves_a_strangers_directory(reader: Reader) -> None:
    """By the kernel's own account: nothing is connected to, started, imported or read outside the directory."""
    require_tool("strace")
    (reader.here / "out").mkdir(exist_ok=True)
    asked = [
        (name, command, line.format(run=reader.sent / name, out=reader.here / "out", home=reader.here / "home"))
        for name in sorted(path.name for path in reader.sent.iterdir())
        for command, lines in READING.items()
        for line in lines
    ]
    seen = watched(reader, [line for *_, line in asked])
    found = {
        line: stray
        for (name, _, line), (*_, trace) in zip(asked, seen, strict=True)
        if (stray := strays(trace, reader, reader.sent / name))
    }
    assert found == {}
    ended = {line: (code, said) for (*_, line), (code, said, _) in zip(asked, seen, strict=True)}
    # Of the others some find nothing there, and an approval asks.
    shown = {command for name, command, line in asked if name == "own" and ended[line][0] == 0}
    assert shown == READING.keys() - {"run", "tell", "trials", "flower approve", "ledger recover"}
    sweep = f"{reader.sent}/own/sweep.toml"
    not_imported = (2, f"privbo: Not importing what {sweep} names without --trust.\n")
    assert ended[f"compare {sweep} --finished --out {reader.here}/out/swept"] == not_imported
    approved = ended[f"flower approve {reader.here}/home/site.toml {reader.sent}/own"]
    assert approved == (1, "Serve this run as site site0? [y/N]: Aborted!\n")
    opening = {*shown, "flower approve"} - {"verify-bundle", "ledger left"}
    for name, command, line in asked:
        if name in ("database", "file", "relative") and command in opening:
            code, said = ended[line]
            assert (code, len(said.splitlines())) == (2, 1), line
            assert re.search("Not importing|add --ledger|add --trust", said)


def test_the_trace_of_a_command_that_strays_is_noticed(reader: Reader) -> None:
    """Lines as strace writes them: a file by its own path, through a link and in a folder, a program, an address."""
    run, here = reader.sent / "own", reader.here / "own"
    lines = {
        f'openat(AT_FDCWD<{here}>, "theirs.py", O_RDONLY|O_CLOEXEC) = 3<{here}/theirs.py>': f"{here}/theirs.py",
        f'openat(AT_FDCWD<{here}>, "{run}/a", O_RDONLY) = 3</root/secret>': "/root/secret",
        f'openat(AT_FDCWD<{here}>, "/root/none", O_RDONLY) = -1 ENOENT (No such file or directory)': "/root/none",
        'openat(4</root>, "secret", O_RDONLY) = 3</root/secret>': "/root/secret",
        'execve("/bin/sh", ["sh"], 0x7 /* 9 vars */) = 0': '"/bin/sh"',
        "connect(3<socket:[1]>, {sa_family=AF_INET, sin_port=htons(5432)}, 16) = -1 ECONNREFUSED": "AF_INET",
        'connect(3<socket:[1]>, {sa_family=AF_UNIX, sun_path="/run/s"}, 110) = 0': "AF_UNIX",
    }
    for line, stray in lines.items():
        (only,) = strays(f"17 {line}\n", reader, run)
        assert stray in only
    fine = f'17 openat(AT_FDCWD<{here}>, "{run}/config.json", O_RDONLY) = 3<{run}/config.json>\n'
    assert strays(fine, reader, run) == []
