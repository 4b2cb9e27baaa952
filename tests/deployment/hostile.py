"""Hostile answers: every row a client may send, and every reply a node may send instead of an answer."""

import os
import struct
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privbo.flower.answers import ready, respond
from privbo.flower.messages import ACTION, READY

HEADER = 32  # magic, round, length


def _row(value: float):
    return lambda sent: sent[:HEADER] + np.full((len(sent) - HEADER) // 8, value).tobytes()


# What an inbox makes of every kind of message, and of everything in the place of one: tests/door/test_payload.py.
VECTORS = {
    "nan": _row(np.nan),
    "infinity": _row(np.inf),
    "1e308": _row(1e308),
    "empty": lambda _: b"",
    "megabytes": lambda sent: sent + b"\0" * 1_000_000,
    "a pickle that runs": lambda _: b"cos\nsystem\n(S'touch /tmp/owned'\ntR.",
    "another round": lambda sent: sent[:16] + struct.pack("<Q", 2**63) + sent[24:],
}

Fields = dict[str, Any]


def _fields(change):
    return lambda reply: RecordDict({"answer": ConfigRecord(change(dict(reply.content.config_records["answer"])))})


def _raise(_: Message) -> RecordDict:
    raise ValueError("a secret of patient 17")


def _die(_: Message) -> RecordDict:
    os._exit(9)


REPLIES = {
    "nothing": lambda _: RecordDict(),
    "arrays": lambda _: RecordDict({"answer": ArrayRecord([np.ones(7)])}),
    "an array that is none": lambda _: RecordDict(
        {"answer": ArrayRecord({"x": Array("float64", (10**9, 10**9), "numpy.ndarray", b"\x93NUMPY")})}
    ),
    "another nonce": _fields(lambda f: f | {"nonce": b"\0" * 16}),
    "no nonce": _fields(lambda f: {k: v for k, v in f.items() if k != "nonce"}),
    "another site": _fields(lambda f: f | {"site": "moon"}),
    "other people's clients": _fields(lambda f: f | {"clients": [0] * len(f["clients"])}),
    "unknown clients": _fields(lambda f: f | {"clients": [10**9] * len(f["clients"])}),
    "truth values": _fields(lambda f: f | {"clients": [True] * len(f["clients"])}),
    "too few": _fields(lambda f: f | {"vectors": []}),
    "a nonce of another type": _fields(lambda f: f | {"nonce": "text"}),
    "no site": _fields(lambda f: f | {"site": 3}),
    "a long name": _fields(lambda f: f | {"site": "x" * 10_000}),
    "a single vector": _fields(lambda f: f | {"vectors": b"".join(f["vectors"])}),
    "an error": _fields(lambda f: f | {"error": "x" * 1000}),
    "megabytes": _fields(lambda f: f | {"padding": b"\0" * 20_000_000, "clients": []}),
    "an exception": _raise,
    "a dead process": _die,
}


def hostile_app(home) -> ClientApp:
    """The site's app, tampered with as the node config says: ``vectors``, or ``replies`` from some place on."""

    def act(message: Message, context: Context) -> Message:
        reply = respond(message, context, home)
        how = context.node_config
        if "vectors" in how:
            reply.content = _every_client_another(reply)
        elif "replies" in how:
            place = int(how["replies"]) + int(how["step"]) * int(message.metadata.group_id)
            among = len(REPLIES) - ("alive" in how)  # the last one ends the process
            reply.content = list(REPLIES.values())[place % among](reply)
        return reply

    app = ClientApp()
    app.query(READY)(lambda message, context: ready(message, context, home))
    app.query(ACTION)(act)
    return app


def _every_client_another(reply: Message) -> RecordDict:
    fields = dict(reply.content.config_records["answer"])
    changes = list(VECTORS.values())
    sent = [changes[index % len(changes)](vector) for index, vector in enumerate(fields["vectors"])]
    return RecordDict({"answer": ConfigRecord(fields | {"vectors": sent})})
