"""The bytes of a release and of an answer: their layout, digit by digit, and what is no release."""

import ast
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from accountant.errors import LedgerError
from privbo.door.payload import Clipping, Inbox, decode_release, encode_answer, encode_release, vet_rows
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Release, Request
from tests.builders import door, ledger
from tests.sources import imported, trees

HEADER = {"clipping": None, "head": "ab", "noise_stddev": 0.5, "round": 3, "sequence": 9, "shape": [2, 1]}
RELEASE = Release(round=3, values=np.array([[1.0], [-2.0]]), noise_stddev=0.5, sequence=9, head="ab")


def payload(body: bytes = bytes(16), magic: bytes = b"privbo release 1\n", **changes) -> bytes:
    return magic + json.dumps(HEADER | changes).encode() + b"\n" + body


def test_the_layout_is_a_magic_line_a_sorted_header_and_little_endian_doubles() -> None:
    line = b'{"clipping":null,"head":"ab","noise_stddev":0.5,"round":3,"sequence":9,"shape":[2,1]}'
    expected = b"privbo release 1\n" + line + b"\n" + b"\0\0\0\0\0\0\xf0\x3f" + b"\0\0\0\0\0\0\x00\xc0"
    assert encode_release(RELEASE) == expected
    assert encode_release(replace(RELEASE, values=RELEASE.values.astype(">f8"))) == expected
    adapted = encode_release(RELEASE, Clipping(norm=0.25, fraction=0.5))
    assert adapted == expected.replace(b"null", b'{"fraction":0.5,"norm":0.25}')


@pytest.mark.parametrize("filler", [b"\n", b"\t\n \r"])
def test_every_byte_of_a_value_survives_also_where_it_is_white_space(filler: bytes) -> None:
    clipping = Clipping(norm=0.25, fraction=-0.125)
    values = np.frombuffer((filler * 48)[:48], dtype="<f8").reshape(2, 3)
    again, found = decode_release(encode_release(replace(RELEASE, values=values, noise_stddev=0.0), clipping))
    np.testing.assert_array_equal(again.values, values)
    assert again.values.dtype == np.float64
    assert (again.round, again.noise_stddev, again.sequence, again.head) == (3, 0.0, 9, "ab")
    assert found == clipping


def test_noise_that_is_no_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_release(replace(RELEASE, noise_stddev=math.inf))


@pytest.mark.parametrize(
    "damaged",
    [
        payload(b"", shape=[0, 1]),
        payload(shape=[-2, -1]),
        payload(shape=[2, 2]),
        payload(shape=[1, 1]),
        payload(shape=[2, 40000000000]),
        payload()[:-1],
        b"",
        payload(noise_stddev=math.nan),
        payload(noise_stddev=-0.5),
        payload(noise_stddev="0.5"),
        payload(magic=b"privbo release 2\n"),
        payload(clipping={"norm": 1.0}),
        payload(more=1),
    ],
    ids=lambda p: repr(p[:120]),
)
def test_what_is_no_release_is_refused_and_says_so(damaged: bytes) -> None:
    assert decode_release(payload())[0].values.tolist() == [[0.0], [0.0]]
    with pytest.raises(LedgerError, match="stored bytes are no release"):
        decode_release(damaged)


# --- answers --------------------------------------------------------------------------------


def test_an_answer_is_magic_round_length_and_little_endian_doubles() -> None:
    expected = b"privbo answer 1\n" + b"\4" + bytes(7) + b"\1" + bytes(7) + b"\0\0\0\0\0\0\xf0\x3f"
    for dtype in ("<f8", ">f8", "<f4"):
        assert encode_answer(4, np.ones(1, dtype=dtype)) == expected


def test_the_smallest_round_has_one_client_and_one_number() -> None:
    inbox = Inbox(round=0, n_clients=1, dim=1)
    inbox.receive(0, encode_answer(0, np.array([2.5])))
    assert inbox.close().tolist() == [[2.5]]
    assert inbox.refused == {}
    assert Inbox(round=0, n_clients=0, dim=1).close().shape == (0, 1)


def test_an_inbox_of_no_round_is_refused() -> None:
    for change in ({"round": -1}, {"n_clients": -1}, {"dim": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(change))):
            Inbox(**({"round": 0, "n_clients": 2, "dim": 3} | change))


# ---- whatever a client sends or fails to send, it decides its own contribution and nothing else

N, DIM = 5, 3
REQUEST = Request(dim=DIM, clipping_norm=2.0, weights=np.arange(1.0, 2 * N + 1).reshape(2, N))
HONEST = np.random.default_rng(0).normal(size=(N, DIM))


def released(answers, *, sample_rate: float = 0.6):
    """One release with the same secret participants and the same noise every time."""
    here = door(ledger(N), sample_rate=sample_rate)
    made = here.close(here.open(0, REQUEST), answers)
    assert len(here.ledger.entries()) == 1
    return made


def without(client: int) -> np.ndarray:
    return np.where(np.arange(N)[:, None] == client, 0.0, HONEST)


# Takes part, as another does and some do not, so that the tests below compare something.
CLIENT = next(i for i in range(N) if not np.array_equal(released(HONEST)[0].values, released(without(i))[0].values))


class Evil:
    """Answers every conversion, and whoever measures it, with a trap."""

    def __array__(self, *arguments, **keywords):
        raise AssertionError("converted")

    __float__ = __len__ = __array__


class EvilArray(np.ndarray):
    """A subclass may do anything in its methods."""


NUMBERS = {
    "one nan": [1.0, np.nan, 1.0],
    "infinity": [np.inf, 0.0, 0.0],
    "both infinities": [np.inf, -np.inf, 0.0],
    "1e200": [1e200] * DIM,
    "smallest denormal": [5e-324] * DIM,
    "minus zero": [-0.0] * DIM,
}
VECTORS = {name: np.array(numbers) for name, numbers in NUMBERS.items()} | {
    "half precision": np.ones(DIM, dtype=np.float16),
    "whole numbers": np.ones(DIM, dtype=np.int64),
    "objects": np.array([1.0, None, {}], dtype=object),
    "strings": np.array(["1"] * DIM),
    "structured": np.zeros(DIM, dtype=[("a", "f8")]),
    "a list": [1.0] * DIM,
    "a dictionary": {"vector": np.ones(DIM)},
    "none": None,
    "text": "1 2 3",
    "a trap": Evil(),
    "a subclass": np.ones(DIM).view(EvilArray),
    "a masked array": np.ma.masked_array(np.ones(DIM), mask=[True] * DIM),
}


@pytest.mark.parametrize("vector", VECTORS)
def test_numbers_that_are_no_answer_contribute_exactly_zero(vector: str) -> None:
    """Nor do vectors of another kind."""
    answers = [*HONEST]
    answers[CLIENT] = VECTORS[vector]
    release, statistics = released(answers if vector not in NUMBERS else np.array(answers))
    expected, honest = released(without(CLIENT))
    np.testing.assert_array_equal(release.values, expected.values)
    assert release.noise_stddev == expected.noise_stddev
    assert 1 < statistics["n_participants"] == honest["n_participants"] < N
    assert statistics["n_absent"] == (vector not in ("smallest denormal", "minus zero"))


ANSWERS = {
    "nothing": None,
    "too few rows": HONEST[:3],
    "another length": np.ones((N, DIM + 1)),
    "one rank more": np.ones((N, DIM, 1)),
    "objects": HONEST.astype(object),
    "big-endian": HONEST.astype(">f8"),
    "a short list": [*HONEST][:2],
    "a dictionary": dict(enumerate(HONEST)),
    "a trap": Evil(),
}


@pytest.mark.parametrize("answers", ANSWERS)
def test_answers_of_another_shape_are_an_absence_of_everyone(answers: str) -> None:
    release, statistics = released(ANSWERS[answers])
    np.testing.assert_array_equal(release.values, released(np.zeros((N, DIM)))[0].values)
    assert statistics["n_absent"] == statistics["n_participants"]
    assert statistics["norm_quantiles"] == []


def test_an_empty_sample_is_noise_of_the_same_size_and_price() -> None:
    empty, statistics = released(HONEST, sample_rate=1e-12)
    assert statistics["n_participants"] == 0
    assert np.all(empty.values != 0)
    assert empty.noise_stddev == released(np.zeros((N, DIM)), sample_rate=1e-12)[0].noise_stddev
    np.testing.assert_array_equal(empty.values, released(np.zeros((N, DIM)), sample_rate=1e-12)[0].values)


@settings(max_examples=150, deadline=None)
@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
def test_any_array_is_taken_or_left_without_an_error(vector: np.ndarray) -> None:
    rows = vet_rows([*HONEST[:-1], vector], n_clients=N, dim=DIM)
    np.testing.assert_array_equal(rows[:-1], HONEST[:-1])
    assert rows.dtype == np.float64
    native = vector.dtype in (np.dtype(np.float64), np.dtype(np.float32)) and vector.shape == (DIM,)
    np.testing.assert_array_equal(rows[-1], vector if native else np.full(DIM, np.nan))


def test_a_list_or_an_array_of_objects_is_read_entry_by_entry_and_a_table_of_objects_is_not() -> None:
    entries = np.empty(N, dtype=object)
    entries[:] = [*HONEST[:-1], "nothing"]
    expected = HONEST.copy()
    expected[-1] = np.nan
    for answers in (entries, list(entries), tuple(entries)):
        np.testing.assert_array_equal(vet_rows(answers, n_clients=N, dim=DIM), expected)
    for table in (HONEST.astype(object), entries[:-1], entries[:, None]):
        assert np.isnan(vet_rows(table, n_clients=N, dim=DIM)).all()


def test_a_signalling_nan_is_an_absence_and_raises_no_warning() -> None:
    """Turning such a float32 into a float64 makes numpy warn, and a program that forbids warnings would stop."""
    signalling = np.full((N, DIM), 0x7F800001, dtype=np.uint32).view(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for answers in (signalling, list(signalling)):
            assert np.isnan(vet_rows(answers, n_clients=N, dim=DIM)).all()


def filled_inbox(messages: list[tuple]) -> tuple[np.ndarray, dict[str, int]]:
    inbox = Inbox(round=4, n_clients=N, dim=DIM)
    for client, message in messages:
        inbox.receive(client, message)
    return inbox.close(), inbox.refused


MESSAGES = {
    "another round": [(1, encode_answer(3, HONEST[1]))],
    "unknown client": [(N, encode_answer(4, HONEST[1])), (-1, encode_answer(4, HONEST[1])), (True, b"")],
    "wrong size": [(1, encode_answer(4, HONEST[1]) + b"norm=0.1"), (1, encode_answer(4, HONEST[1])[:-1]), (1, b""),
                   (1, bytes(10**6)), (1, None), (1, {"vector": HONEST[1], "norm": 0.1})],
    "wrong length": [(1, encode_answer(4, HONEST[1]).replace(b"\x03\0\0\0\0\0\0\0", b"\xff" * 8))],
    "no answer": [(1, b"\x80\x04" + encode_answer(4, HONEST[1])[2:])],
}  # fmt: skip


@pytest.mark.parametrize("reason", MESSAGES)
def test_malformed_messages_are_dropped_silently(reason: str) -> None:
    rows, refused = filled_inbox(MESSAGES[reason])
    assert np.isnan(rows).all()
    assert refused == {reason: len(MESSAGES[reason])}


def test_the_first_answer_counts_and_late_ones_do_not() -> None:
    inbox = Inbox(round=4, n_clients=N, dim=DIM)
    inbox.receive(1, encode_answer(4, HONEST[1]))
    inbox.receive(1, encode_answer(4, HONEST[2]))
    rows = inbox.close()
    inbox.receive(2, encode_answer(4, HONEST[2]))
    np.testing.assert_array_equal(rows[1], HONEST[1])
    assert np.isnan(np.delete(rows, 1, axis=0)).all()
    np.testing.assert_array_equal(inbox.close(), rows)
    assert inbox.refused == {"duplicate": 1, "late": 1}


@given(st.binary(max_size=200), st.integers(-3, N + 3))
def test_no_message_raises(message: bytes, client: int) -> None:
    rows, refused = filled_inbox([(client, message)])
    assert np.isnan(rows).all()
    assert sum(refused.values()) == 1


FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}


def test_nothing_in_the_release_path_unpickles_or_evaluates() -> None:
    found = trees("accountant", "privbo/door", "privbo/runs")
    del found["privbo/runs/worker_pool.py"]  # talks to processes of its own
    for path, tree in found.items():
        assert not FORBIDDEN & {name.split(".")[0] for name in imported(tree)}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", None)
                assert called not in {"eval", "exec", "compile", "__import__"}, path
                pickles = [k for k in node.keywords if k.arg == "allow_pickle"]
                assert all(isinstance(k.value, ast.Constant) and k.value.value is False for k in pickles), path
