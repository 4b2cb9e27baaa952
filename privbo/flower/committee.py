"""The server's way to guardians on other machines: finds them, carries ciphertexts and statements, waits for sums."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger.signing import checked
from privbo.door.mechanism import PrivateSum
from privbo.flower.messages import (
    GUARD_TYPE,
    MEETING,
    GuardianQuestion,
    Said,
    decode_said,
    encode_guardian_question,
)
from privbo.flower.settings import Timeouts
from privbo.flower.transport import SealedRound, replies
from privbo.guardians.ciphertexts import Call, question_digest
from privbo.guardians.committee import joined_answers
from privbo.guardians.guardian import Answer
from privbo.guardians.keys import Card
from privbo.protocol.errors import RunError
from privbo.protocol.messages import IntArray, Request

_MEETING = "-1"  # in place of a round
_AGAIN = "the run goes on where it is when it is run again"


@dataclass(kw_only=True)
class FlowerCommittee:
    """Guardians at the other end of Flower's grid.

    Attributes:
        grid: Flower's grid.
        timeouts: Waiting times.
        cards: Every guardian's public keys by name, in the order of shares.
        run: Name of the run.
        plan: Name of its declared plan, as every party computes it.
        public_seed: Seed of what all sides agree on.
        sites: Nodes that are known to be sites, by their keys.
        note: Receives every guardian's signed receipt.
        nodes: By name, where each guardian was met last.
    """

    grid: Grid
    timeouts: Timeouts
    cards: Mapping[str, Card]
    run: str
    plan: str
    public_seed: int
    sites: Callable[[bytes], bool]
    note: Callable[[Json], None]
    nodes: dict[str, int] = field(default_factory=dict)

    def meet(self) -> None:
        """Find the node of every guardian, or wait for those that are missing.

        Raises:
            RunError: If one is not there in time.
        """
        deadline, asked = time.monotonic() + self.timeouts.start_timeout, set[int]()
        while True:
            there = {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}
            self.nodes = {name: node for name, node in self.nodes.items() if node in there}
            asked &= there.keys()
            unknown = [n for n, key in there.items() if n not in asked and not self.sites(key)]
            if len(self.nodes) < len(self.cards) and unknown:
                asked.update(unknown)
                self._greet(unknown)
            if len(self.nodes) == len(self.cards):
                return
            if time.monotonic() > deadline:
                missing = ", ".join(name for name in self.cards if name not in self.nodes)
                raise RunError(f"guardians {missing} are not connected; start their SuperNodes: {_AGAIN}")
            time.sleep(self.timeouts.poll)

    def gather(self, round_: int, mechanism: PrivateSum, request: Request, answers: object) -> IntArray:
        """Give the noisy sums of ciphertexts in grid units; see ``privbo.door.door``.

        Raises:
            RunError: If the answers are no ciphertexts of a round over Flower.
        """
        if not isinstance(answers, SealedRound):
            raise RunError(f"guardians on other machines sum ciphertexts, and not {type(answers).__name__}")
        call = Call(run=self.run, round=round_, plan=self.plan, question=question_digest(mechanism, request))
        signed = self._receive(call, answers)
        return joined_answers(self._answer(call, signed), self.cards, call, request, self.note)

    def _receive(self, call: Call, sealed: SealedRound) -> list[Json]:
        """Hand every guardian its shares; every guardian's signed statement."""
        wanted = GuardianQuestion(
            kind="receive",
            nonce=b"",
            run=self.run,
            round=call.round,
            public_seed=self.public_seed,
            broadcast=sealed.broadcast,
        )
        shares = {name: [one.share(place) for one in sealed.ciphertexts] for place, name in enumerate(self.cards)}
        said = self._ask(call, {n: dataclasses.replace(wanted, encrypted_shares=own) for n, own in shares.items()})
        return [each.statement or {} for each in said.values()]

    def _answer(self, call: Call, signed: Sequence[Json]) -> Mapping[str, Answer]:
        """Show every guardian the others' statements, its own it has; every guardian's answer, by name."""
        wanted = GuardianQuestion(kind="answer", nonce=b"", run=self.run, round=call.round)
        others = {name: [*signed[:place], *signed[place + 1 :]] for place, name in enumerate(self.cards)}
        said = self._ask(call, {name: dataclasses.replace(wanted, signed=each) for name, each in others.items()})
        return {name: each.answer or Answer(payload=b"", receipt={}) for name, each in said.items()}

    def _ask(self, call: Call, wanted: Mapping[str, GuardianQuestion]) -> dict[str, Said]:
        """Ask all guardians at once; every reply, in the order of shares.

        Raises:
            RunError: If one refuses, is gone, or does not answer in time.
        """
        self.meet()
        found = self._exchange({self.nodes[name]: each for name, each in wanted.items()}, str(call.round))
        said = {name: found.get(self.nodes[name], Said(refusal="no answer in time")) for name in self.cards}
        for name, each in said.items():
            if each.refusal is not None:
                self.nodes.pop(name)
                raise RunError(
                    f"guardian {name}, round {call.round}: {each.refusal}; there is no release, and {_AGAIN}"
                )
        return said

    def _greet(self, nodes: Sequence[int]) -> None:
        nonces = {node: secrets.token_bytes(16) for node in nodes}
        asked = {node: GuardianQuestion(kind="meet", nonce=nonce, run=self.run) for node, nonce in nonces.items()}
        for node, said in self._exchange(asked, _MEETING).items():
            name = self._proven(said, asked[node])
            if name is not None:
                self.nodes[name] = node

    def _proven(self, said: Said, wanted: GuardianQuestion) -> str | None:
        """The guardian whose registered key signed this very greeting, or None."""
        try:
            content = checked(said.statement, MEETING)
            card, key = self.cards.get(str(content["guardian"])), (said.statement or {})["key"]
        except (LedgerError, KeyError, TypeError):
            return None
        same = (content.get("run"), content.get("nonce")) == (wanted.run, wanted.nonce.hex())
        return str(content["guardian"]) if same and card is not None and card.signing == key else None

    def _exchange(self, wanted: Mapping[int, GuardianQuestion], group: str) -> dict[int, Said]:
        """Push one question to every node and decode what comes back in time."""
        nonces = {node: each.nonce or secrets.token_bytes(16) for node, each in wanted.items()}
        messages = [
            Message(
                encode_guardian_question(dataclasses.replace(each, nonce=nonces[node])),
                node,
                GUARD_TYPE,
                ttl=self.timeouts.round_timeout,
                group_id=group,
            )
            for node, each in wanted.items()
        ]
        pushed = zip(self.grid.push_messages(messages), wanted, strict=False)
        sent = {identity: node for identity, node in pushed if identity}
        seconds = self.timeouts.round_timeout if group != _MEETING else self.timeouts.start_timeout
        return {
            sent[identity]: decode_said(message, nonces[sent[identity]])
            for identity, message in replies(self.grid, sent, poll=self.timeouts.poll, seconds=seconds)
        }
