"""The server's ciphertext box: one fixed-size ciphertext per client, anything else dropped without a word."""

from __future__ import annotations

import pytest

from privbo.guardians.ciphertexts import CiphertextBox, encode_ciphertext
from tests.guardians.committees import DIM, N, call, cards_of, ciphertexts, circle


def box(round_: int = 0) -> CiphertextBox:
    return CiphertextBox(round_=round_, n_clients=N, n_guardians=2, n_entries=2 * DIM)


WRITTEN = ciphertexts(call(), cards_of(circle()))


def test_ciphertexts_arrive_as_they_were_written_in_the_order_of_clients() -> None:
    found = box()
    for ciphertext in reversed(WRITTEN):
        found.receive(ciphertext.client, encode_ciphertext(0, ciphertext))
    assert list(found.close()) == WRITTEN
    assert found.refused == {}


@pytest.mark.parametrize(
    ("client", "message", "reason"),
    [
        (N, encode_ciphertext(0, WRITTEN[0]), "unknown client"),
        (-1, encode_ciphertext(0, WRITTEN[0]), "unknown client"),
        (True, encode_ciphertext(0, WRITTEN[0]), "unknown client"),
        ("0", encode_ciphertext(0, WRITTEN[0]), "unknown client"),
        (1, encode_ciphertext(0, WRITTEN[0])[:-1], "wrong size"),
        (1, encode_ciphertext(0, WRITTEN[0]) + b"x", "wrong size"),
        (1, "text", "wrong size"),
        (1, None, "wrong size"),
        (1, b"x" + encode_ciphertext(0, WRITTEN[0])[1:], "no ciphertext"),
        (1, encode_ciphertext(1, WRITTEN[0]), "another round"),
        (0, encode_ciphertext(0, WRITTEN[0]), "duplicate"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",  # ciphertexts are random
)
def test_what_is_no_ciphertext_of_this_round_is_dropped_and_decides_no_other(client, message, reason: str) -> None:
    found = box()
    found.receive(0, encode_ciphertext(0, WRITTEN[0]))
    found.receive(client, message)
    assert found.refused == {reason: 1}
    assert list(found.close()) == WRITTEN[:1]
