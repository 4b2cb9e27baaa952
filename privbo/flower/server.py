"""The server's app, which owns door and ledger, and its way to sites and guardians on other machines.

Every registered client is asked in every round, whichever take part: the sample is drawn
by the door and never leaves it, so neither the network nor a site learns who was sampled.
Only over a channel that is declared to hide who is asked are sampled clients asked alone.
A round ends when every node that was asked has answered or failed, or at its timeout.
Whatever is late, duplicate, foreign or malformed is an absence, and an absence changes
neither the noise nor what the sum is divided by.

Guardians are found by their registered keys; ciphertexts and statements are carried to them, and every one of them has
to answer, or there is no release.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger.chain import Position, encode_rows
from accountant.ledger.signing import checked
from accountant.verify.text import shown
from privbo.door.door import Gather, Ticket
from privbo.door.mechanism import PrivateSum
from privbo.door.payload import Box, Inbox
from privbo.door.sums import Sealed, joined_blocks
from privbo.flower.exchange import POLL, exchange
from privbo.flower.messages import (
    MEETING,
    GuardianQuestion,
    GuardianReply,
    Question,
    ReadinessQuestion,
    Reply,
)
from privbo.flower.party import terms_of
from privbo.flower.registry import RUN_FILE, Federation, public_spec, read_federation, require_guardians, require_hidden
from privbo.flower.site import countersigned
from privbo.guardians.ciphertexts import Call, Ciphertext, CiphertextBox, question_digest
from privbo.guardians.guardian import Answer, joined_answers
from privbo.protocol.errors import RunError
from privbo.protocol.files import append_line, read_lines
from privbo.protocol.messages import Ask, Broadcast, FloatArray, IntArray, Request, Standing
from privbo.reports.report_page import write_report
from privbo.runs.evidence import declared_by, plan_name, plan_of
from privbo.runs.guarded import keep_cards, keeping
from privbo.runs.loop import play
from privbo.runs.manifest import Manifest, RunDirectory, noise_of
from privbo.runs.opening import Run, open_run, plan_run

_AGAIN = "the run goes on where it is when it is run again"
# What a site that is not ready lacks, by the class of its error; its own words are not repeated.
_LACKS = {
    "PolicyError": "its policy refuses the run",
    "RefusedError": "it has not approved these files, or computes another plan from them",
    "ConfigurationError": "its settings are impossible, or its objective is not found there",
    "RunError": "its privbo is of another version (use one), or its ledger is gone (restore it from a copy)",
    "LedgerError": "its ledger can't be read (restore it from a copy)",
}


def server_app(home: Path) -> ServerApp:
    """The server's app: runs ``home/run.toml``, or goes on with it where it was interrupted.

    The run config's ``directory`` is the run's directory on the server's machine; the ledger is in it.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(grid, home, RunDirectory(Path(str(context.run_config["directory"]))))

    app.main()(main)
    return app


def serve(grid: Grid, home: Path, directory: RunDirectory) -> None:
    """Play a run over a grid, from its first open round to the last; write its report.

    Raises:
        ConfigurationError: If a setting is impossible; nothing was touched.
        RunError: If too few sites or guardians are ready for a new run, which is not made; or if too few are there
            later, and the run can be resumed.
    """
    spec, federation = public_spec(home), read_federation(home)
    federation = federation.checked(spec.problem.n_clients).on_grid(spec)
    require_guardians(federation, spec.privacy)
    require_hidden(spec, federation)
    committee = FlowerCommittee(grid=grid, federation=federation, directory=directory)

    def gather(manifest: Manifest) -> Gather:
        if spec.privacy.trust == "sites":
            absent = noise_of(manifest.plan.noise_source, directory.seed, "noise of absent sites")
            return lambda round_, mechanism, request, rows: joined_blocks(
                mechanism, request, np.asarray(rows), absent.stream(str(round_))
            )
        keep_cards(directory, federation.guardians, "Flower")
        return partial(committee.gather, manifest)

    reached = None if spec.privacy.trust == "server" else gather
    plan, begun = plan_run(spec), directory.config_path.exists()
    # A run that was charged goes on, no matter which sites are ready: that may follow from what clients did in it.
    if not begun:
        terms = terms_of(plan, settings=spec.digest())
        require_ready(grid, federation, ReadinessQuestion(terms=terms))
        committee.meet(GuardianQuestion(kind="meet", run="", terms=terms))
    with directory.settled(), ExitStack() as held:
        run = open_run(spec, plan, directory, resume=begun, gather=reached, held=held)
        transport = Flower(grid=grid, federation=federation, run=run, guardians=committee, started=not begun)
        committee.meet(GuardianQuestion(kind="meet", run=run.record.run_id))
        with run.record.ledger:
            if spec.times is not None:
                transport.wait_for_sites()  # before the grid begins: how long they take is not of it
            said = {True: "local work", False: "one release"}
            write_report(play(run, transport, lambda e: _print(f"round {e.index}: {said[e.release is None]}")))
    _print(f"finished; ledger and report are in {directory.path}")


def require_ready(grid: Grid, federation: Federation, question: ReadinessQuestion) -> None:
    """Ask every site, before a run is made, whether it would answer it; nothing is charged or written.

    A site says whether it approved the files, its policy allows the run and its objective is found. It executes
    nothing of the objective and reads no data, so who is ready tells nothing of clients.

    Raises:
        RunError: If fewer than ``min_sites`` are ready, naming the others and what they lack.
    """
    sites, least = federation.clients, federation.min_sites
    # Without keys a guardian's node is told from a site's by its reply alone.
    nodes = _registered(grid, federation, len(sites) + (0 if federation.has_keys else len(federation.guardians)))
    found, unnamed = dict.fromkeys(sites, "not connected" if federation.has_keys else "no answer"), Counter[str]()
    found |= {site: "no answer in time" for site in nodes.values() if site is not None}
    asked = dict.fromkeys(nodes, question)
    for node, _, reply in exchange(grid, asked, Reply, federation, group="-1", seconds=federation.start_timeout):
        site, reason = nodes[node], _lack(reply)
        if site is None and not isinstance(reply, str):
            site = reply.site
        if site in found:
            found[site] = reason
        elif reason and not federation.guardians:
            unnamed[reason] += 1
    lacking = {site: reason for site, reason in found.items() if reason}
    if (n_ready := len(sites) - len(lacking)) >= least:
        return
    reasons = [f"{site}: {reason}" for site, reason in lacking.items()]
    reasons += [f"{count} nodes that give no site's name: {reason}" for reason, count in unnamed.items()]
    raise RunError(
        f"{n_ready} of {len(sites)} sites are ready and min_sites is {least} ({'; '.join(reasons)}); no run was made, "
        f"and nothing was charged. At a site, errors.log in its directory says why, and privbo check {RUN_FILE} --site "
        "SITE.toml tries it"
    )


def _lack(reply: Reply | str) -> str:
    """What a node that is not ready lacks, in words of the server's own; empty where it is ready."""
    if not isinstance(reply, str):
        return "" if reply.error is None else _LACKS.get(reply.error, "another error")
    return "its privbo is of another version, or its app failed" if reply.startswith("flower error") else reply


def _registered(grid: Grid, federation: Federation, least: int, apart: Collection[int] = ()) -> dict[int, str | None]:
    """Nodes once so many are connected, or time is up, each with the site its key proves; without keys all, with None.

    Those apart are none of them.
    """
    deadline = time.monotonic() + federation.start_timeout
    while True:
        sites = {int(node.node_id): federation.site_with(bytes(node.public_key)) for node in grid.get_nodes()}
        known = {node: site for node, site in sites.items() if site is not None or not federation.has_keys}
        found = {node: site for node, site in known.items() if node not in apart}
        if len(found) >= least or time.monotonic() >= deadline:
            return found
        time.sleep(POLL)


def _print(line: str) -> None:
    sys.stdout.write(shown(f"privbo: {line}") + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class SealedRound(Sealed):
    """Ciphertexts of a round on their way to the guardians.

    Attributes:
        broadcast: What clients were shown; every guardian computes from it what was asked.
        ciphertexts: Theirs.
    """

    broadcast: Broadcast
    ciphertexts: Sequence[Ciphertext]


@dataclass(kw_only=True)
class Flower:
    """Transport over Flower's grid; the server's end of the wire.

    The PRIVATE folder of the run's directory keeps the traffic of every round (how many nodes were asked, which sites
    answered, replies refused by reason, seconds) and every good countersignature with its site's name.

    Attributes:
        grid: Flower's grid.
        federation: Sites, their clients, waiting times, and the number of sites without which no round is played.
        run: The run.
        guardians: Those who sum, perhaps none; their nodes are no sites.
        started: Whether every site was waited for.
        seen: By site, the last place of the ledger that it has countersigned, or named when it refused.
    """

    grid: Grid
    federation: Federation
    run: Run
    guardians: FlowerCommittee
    started: bool = False
    seen: dict[str, Position] = field(init=False)
    hides_senders: bool = True  # where that is declared: the settings refuse it elsewhere
    _sites: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        path = self.run.record.home.countersigned_path
        path.touch()  # whether it is there shall not tell whether any site was
        self.seen = {str(row["site"]): (int(row["sequence"]), str(row["head"])) for row in read_lines(path)}

    def collect(self, ask: Ask, ticket: Ticket | None = None) -> FloatArray | SealedRound:
        """Ask every client and collect the answers, ``(n_clients, dim)``; NaN rows are absences.

        They are ciphertexts, with what clients were shown, where vectors are shared among guardians. Over a channel
        that hides who sends, only those that the ticket names are asked; see ``require_hidden``.

        Raises:
            RunError: If fewer than ``min_sites`` nodes are there or the SuperLink is gone; the
                run can be resumed.
        """
        request, round_, n_clients = ask.request, ask.broadcast.round, sum(map(len, self.federation.clients.values()))
        if (n_guardians := len(self.federation.guardians)) and request is not None:
            box = CiphertextBox(round_, request, n_guardians)
            self._fill(box, ask)
            return SealedRound(broadcast=ask.broadcast, ciphertexts=box.close())
        dim, senders = 0 if request is None else request.dim, None if ticket is None else ticket.senders
        inbox = Inbox(round=round_, n_clients=n_clients, dim=dim or 1)
        there, sites = self.federation.clients, None
        if senders is not None:
            sites = {site for site, clients in there.items() if senders[list(clients)].any()}
        self._fill(inbox, ask, only=sites)
        answers = inbox.close()[:, :dim]
        return answers if senders is None else np.where(senders[:, None], answers, np.nan)

    def _fill(self, inbox: Box, ask: Ask, only: Collection[str] | None = None) -> None:
        """Play one round: push the question to every node, or some sites', and put what comes in time into the box."""
        there, standing, round_ = self.wait_for_sites(), ask.standing, ask.broadcast.round
        nodes = {node: site for node, site in there.items() if only is None or site in only}
        if standing is None:
            raise RunError("a question to sites needs a ledger behind it; play it through privbo.runs.loop.play")
        refused, answered, started = Counter[str](), set[str](), time.monotonic()
        # Each is shown the rows that its site lacks, as far as is known what it has seen.
        questions = {
            node: Question(
                run=self.run.record.run_id,
                public_seed=self.run.record.manifest.public_seed,
                broadcast=ask.broadcast,
                released=ask.request is not None,
                standing=standing,
                chain=self._chain(standing, self.seen.get(site or self._sites.get(node) or "")),
            )
            for node, site in nodes.items()
        }
        for node, _, reply in exchange(self.grid, questions, Reply, self.federation, group=str(round_)):
            site = self._take(node, reply, nodes[node], inbox, refused)
            if site is None or isinstance(reply, str):
                continue
            answered.add(site)
            receipt = countersigned(reply.receipt, self.run.record.run_id, round_, standing)
            if receipt is None:
                refused["countersignature"] += 1
            else:
                append_line(self.run.record.home.countersigned_path, {"site": site} | receipt, durable=True)
                self.seen[site] = (standing.sequence, standing.head)
        row = {"round": round_, "asked": len(nodes), "answered": sorted(answered)}
        row |= {"refused": refused + Counter(inbox.refused), "seconds": round(time.monotonic() - started, 3)}
        append_line(self.run.record.home.private / "transport.jsonl", row)

    def _chain(self, standing: Standing, seen: Position | None) -> bytes:
        """Rows of the run's ledger that a site lacks: from its last head, or the run's plan if that is not there, on.

        The last row is always among them: it is the round's charge.
        """
        book = self.run.record.ledger.book()
        start = plan_of(self.run.record.manifest, book).sequence - 1
        if seen is not None and seen[0] > start and book.digest_at(seen[0]) == seen[1]:
            start = min(seen[0], standing.sequence - 1)
        return encode_rows(book.rows[start : standing.sequence])

    def wait_for_sites(self) -> dict[int, str | None]:
        """Wait for nodes; each that is connected, with the site its key proves (None without keys).

        Every site is waited for before the first round, later as many as there have to be.

        Raises:
            RunError: If fewer than ``min_sites`` are there in time.
        """
        n_sites, least = len(self.federation.clients), self.federation.min_sites
        least_there, apart = least if self.started else n_sites, self.guardians.nodes.values()
        nodes = _registered(self.grid, self.federation, least_there, apart)
        if len(nodes) < least:
            raise RunError(
                f"{len(nodes)} of {n_sites} sites are connected and min_sites is {least}; start their SuperNodes and "
                "run the app again: it goes on here"
            )
        self.started = True
        return nodes

    def _take(self, node: int, reply: Reply | str, named: str | None, inbox: Box, refused: Counter[str]) -> str | None:
        """Put one node's answers into the inbox; returns its site, if it was an answer."""
        if isinstance(reply, str):
            refused[reply] += 1
            return None
        site = named
        if not self.federation.has_keys:  # for trying out, it is whichever it says
            site = reply.site if reply.site in self.federation.clients else None
        if reply.error is not None:
            refused[f"raised {reply.error}"] += 1
            if site is not None:  # it is shown what it lacks the next time
                self.seen[site] = (reply.sequence or 0, reply.head or "")
            return None
        if site is None:
            refused["foreign node"] += 1
            return None
        self._sites[node] = site
        mine = set(self.federation.clients[site])
        for client, answer in zip(reply.clients or (), reply.vectors or (), strict=True):
            if type(client) is int and client in mine:
                inbox.receive(client, answer)
            else:
                refused["foreign client"] += 1
        return site


@dataclass(kw_only=True)
class FlowerCommittee:
    """Guardians at the other end of Flower's grid.

    Attributes:
        grid: Flower's grid.
        federation: Waiting times, and every guardian's public keys by name, in the order of shares.
        directory: The run's, which keeps every guardian's signed receipt.
        nodes: By name, where each guardian was met last.
    """

    grid: Grid
    federation: Federation
    directory: RunDirectory
    nodes: dict[str, int] = field(default_factory=dict, init=False)

    def meet(self, question: GuardianQuestion) -> None:
        """Find the node of every guardian, or wait for those that are missing; nothing is charged.

        Args:
            question: Names the run; before it is made, its public terms: who would not guard such a run is not met.

        Raises:
            RunError: If one is not there in time, or would not guard the run.
        """
        names, federation = self.federation.guardians.keys(), self.federation
        n_nodes = len(names) + (0 if federation.has_keys else len(federation.sites))  # that may be guardians
        deadline, asked = time.monotonic() + federation.start_timeout, set[int]()
        while names:
            there = {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}
            self.nodes = {name: node for name, node in self.nodes.items() if node in there}
            asked &= there.keys()
            unknown = [n for n, key in there.items() if n not in asked and federation.site_with(key) is None]
            if len(self.nodes) < len(names) and unknown:
                asked.update(unknown)
                self.nodes |= dict(self._greeted(unknown, question))
            if len(self.nodes) == len(names):
                break
            missing, is_over = ", ".join(sorted(names - self.nodes.keys())), time.monotonic() > deadline
            # All there: who refuses is not awaited.
            if question.terms is not None and (is_over or len(asked) >= n_nodes):
                raise RunError(
                    f"guardians {missing} are not connected, or would not guard the run; no run was made, and nothing "
                    "was charged. Start their SuperNodes; at a guardian, errors.log in its directory says why it "
                    "refuses"
                )
            if is_over:
                raise RunError(f"guardians {missing} are not connected; start their SuperNodes: {_AGAIN}")
            time.sleep(POLL)

    def _greeted(self, nodes: Sequence[int], question: GuardianQuestion) -> Iterator[tuple[str, int]]:
        """Ask nodes who they are: a guardian's registered key signs this very greeting."""
        asked, federation = dict.fromkeys(nodes, question), self.federation
        came = exchange(self.grid, asked, GuardianReply, federation, group="-1", seconds=federation.start_timeout)
        for node, nonce, reply in came:
            statement = None if isinstance(reply, str) else reply.statement
            with suppress(LedgerError, KeyError, TypeError):
                content, key = checked(statement, MEETING), (statement or {})["key"]
                is_fresh = (content["run"], content["nonce"]) == (question.run, nonce.hex())
                if is_fresh and federation.guardians[name := str(content["guardian"])].signing == key:
                    yield name, node

    def gather(
        self, manifest: Manifest, round_: int, mechanism: PrivateSum, request: Request, answers: object
    ) -> IntArray:
        """Give the noisy sums of ciphertexts in grid units; see ``privbo.door.door``.

        Raises:
            RunError: If the answers are no ciphertexts of a round over Flower.
        """
        if not isinstance(answers, SealedRound):
            raise RunError(f"guardians on other machines sum ciphertexts, and not {type(answers).__name__}")
        cards, run = self.federation.guardians, manifest.run_id
        declared = declared_by(manifest.plan, run=run, settings=manifest.spec.digest())
        question = question_digest(mechanism, request)
        asked = GuardianQuestion(kind="receive", run=run, public_seed=manifest.public_seed, broadcast=answers.broadcast)
        shown = {
            name: replace(asked, encrypted_shares=[one.share(place) for one in answers.ciphertexts])
            for place, name in enumerate(cards)
        }
        stated = {name: reply.statement for name, reply in self._ask(shown, round_).items()}
        # Each is shown the others' statements; its own it has.
        others = {own: [statement for name, statement in stated.items() if name != own] for own in cards}
        agreed = {name: replace(asked, kind="answer", signed=signed) for name, signed in others.items()}
        answered = {
            name: Answer(payload=reply.payload, receipt=reply.receipt or {})
            for name, reply in self._ask(agreed, round_).items()
        }
        call = Call(run=run, round=round_, plan=plan_name(declared), question=question)
        return joined_answers(answered, cards, call, request, self._keep)

    def _ask(self, questions: Mapping[str, GuardianQuestion], round_: int) -> dict[str, GuardianReply]:
        """Ask all guardians at once; every reply, in the order of shares.

        Raises:
            RunError: If one refuses, is gone, or does not answer in time.
        """
        self.meet(GuardianQuestion(kind="meet", run=next(iter(questions.values())).run))
        asked, found = {self.nodes[name]: question for name, question in questions.items()}, dict[str, GuardianReply]()
        came = exchange(self.grid, asked, GuardianReply, self.federation, group=str(round_))
        replied = {node: reply for node, _, reply in came}
        for name in questions:
            reply = replied.get(self.nodes[name], "no answer in time")
            words = reply if isinstance(reply, str) else reply.refusal
            if isinstance(reply, str) or words is not None:
                self.nodes.pop(name)
                text = f"guardian {name}, round {round_}: {words}; there is no release, and {_AGAIN}"
                raise RunError(shown(text))
            found[name] = reply
        return found

    @cached_property
    def _keep(self) -> Callable[[Json], None]:
        return keeping(self.directory)
