"""The bytes of a release and of an answer: their layout, digit by digit, and what is no release."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from accountant.errors import LedgerError
from privbo.door.payload import Clipping, Inbox, decode_release, encode_answer, encode_release
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Release

HEADER = {"clipping": None, "head": "ab", "noise_stddev": 0.5, "round": 3, "sequence": 9, "shape": [2, 1]}


def release(values=((1.0,), (-2.0,)), **changes) -> Release:
    plain = {"round": 3, "noise_stddev": 0.5, "sequence": 9, "head": "ab"}
    return Release(values=np.asarray(values), **(plain | changes))


def payload(body: bytes = bytes(16), magic: bytes = b"privbo release 1\n", **changes) -> bytes:
    return magic + json.dumps(HEADER | changes).encode() + b"\n" + body


def test_the_layout_is_a_magic_line_a_sorted_header_and_little_endian_doubles() -> None:
    line = b'{"clipping":null,"head":"ab","noise_stddev":0.5,"round":3,"sequence":9,"shape":[2,1]}'
    expected = b"privbo release 1\n" + line + b"\n" + b"\0\0\0\0\0\0\xf0\x3f" + b"\0\0\0\0\0\0\x00\xc0"
    assert encode_release(release()) == expected
    assert encode_release(release(values=np.array([[1.0], [-2.0]], dtype=">f8"))) == expected
    adapted = encode_release(release(), Clipping(norm=0.25, fraction=0.5))
    assert adapted == expected.replace(b"null", b'{"fraction":0.5,"norm":0.25}')


@pytest.mark.parametrize("filler", [b"\n", b"\t\n \r"])
def test_every_byte_of_a_value_survives_also_where_it_is_white_space(filler: bytes) -> None:
    clipping = Clipping(norm=0.25, fraction=-0.125)
    values = np.frombuffer((filler * 48)[:48], dtype="<f8").reshape(2, 3)
    again, found = decode_release(encode_release(release(values=values, noise_stddev=0.0), clipping))
    np.testing.assert_array_equal(again.values, values)
    assert again.values.dtype == np.float64
    assert (again.round, again.noise_stddev, again.sequence, again.head) == (3, 0.0, 9, "ab")
    assert found == clipping


def test_noise_that_is_no_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_release(release(noise_stddev=math.inf))


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
