"""A guardian alone against everybody: charges first, answers a round once, believes what it is shown signed."""

import contextlib
import copy
import dataclasses
import hashlib

import numpy as np
import pytest

from accountant.errors import LedgerError
from accountant.ledger import Ledger
from accountant.ledger.signing import ANSWERED, sign
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.door.shares import NoisySum, own_units
from privbo.guardians.ciphertexts import (
    Call,
    Card,
    Ciphertext,
    CiphertextBox,
    encode_ciphertext,
    encrypt_shares,
    fresh_keys,
    guardian_keys,
    open_share,
    question_digest,
)
from privbo.guardians.guardian import Guardian, LocalCommittee, Statement, StateStore, agreement
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Request
from tests.accountant.builders import declared as planned, policy
from tests.builders import Changed, mechanism_for

# --- a round of guardians without a run around it ---------------------------------------------------------

N, DIM, RUN, PLAN = 6, 4, "run", "p" * 64
REQUEST = Request(dim=DIM, clipping_norm=3.0, weights=np.arange(1.0, 2 * N + 1).reshape(2, N) / 50)


class Silence(SimulatedNoise):
    """A test's own source: no noise at all, so that sums can be compared; nobody but a test can hand it in."""

    def stream(self, label: str):
        return self

    def gaussian(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)


def mechanism(request, *, n_guardians: int = 2, **settings):
    return mechanism_for(request, **{"noise_multiplier": 1.0, "n_noises": n_guardians} | settings)


def declared(events=None, source: str = "simulation"):
    return planned(RUN, events=events or ((mechanism(REQUEST).event(), 5),), noise_source=source)


def guardian(name="guardian1", *, keys, cards, noise=None, folder=None, declaration=None, **settings) -> Guardian:
    """One guardian; in a folder it goes on where an earlier one of the same folder was."""
    path = folder and folder / "ledger.sqlite"
    if path and path.exists():
        ledger = Ledger.open(path)
    else:
        ledger = Ledger.create(path, policy(n_clients=N))
        ledger.reserve(declaration or declared())
    return Guardian(
        name=name,
        keys=keys,
        cards=cards,
        run=RUN,
        plan=PLAN,
        mechanism=lambda request: mechanism(request, n_guardians=len(cards), **settings),
        store=StateStore(path=folder and folder / "rounds"),
        ledger=lambda: contextlib.nullcontext(ledger),
        noise=noise or SimulatedNoise(7),
        site_of=lambda _: "",
    )


def circle(n_guardians: int = 2, noise=SimulatedNoise, folder=None, **settings) -> dict[str, Guardian]:
    """Guardians with keys of their own; in a folder they go on where earlier ones of the same folder were."""
    names = [f"guardian{place + 1}" for place in range(n_guardians)]
    places = {name: folder and folder / name for name in names}
    keys = {name: guardian_keys(place) if place else fresh_keys() for name, place in places.items()}
    cards = {name: each.card for name, each in keys.items()}
    return {
        name: guardian(name, cards=cards, noise=noise(number), keys=keys[name], folder=places[name], **settings)
        for number, name in enumerate(names)
    }


def cards_of(guardians: dict[str, Guardian]) -> dict[str, Card]:
    return next(iter(guardians.values())).cards


def shares(written: list[Ciphertext], place: int) -> list[bytes]:
    return [one.share(place) for one in written]


def committee(guardians: dict[str, Guardian], coins: NoiseSource | None = None) -> LocalCommittee:
    return LocalCommittee(guardians=guardians, coins=coins or SecureNoise(), outbox=StateStore())


def call(round_: int = 0, request=REQUEST, **changes) -> Call:
    made = {"run": RUN, "round": round_, "plan": PLAN, "question": question_digest(mechanism(request), request)}
    return Call(**made | changes)


def ciphertexts(asked, cards, request=REQUEST, *, seed=0, site="", **settings):
    made = mechanism(request, n_guardians=len(cards), **settings)
    rows = np.random.default_rng(seed).normal(size=(request.n_clients, request.dim))
    who = np.arange(request.n_clients)
    units = own_units(made, request, rows, who, SecureNoise())
    return encrypt_shares(asked, units, who.tolist(), cards=cards, site=site)


def lasting(folder) -> dict[str, Guardian]:
    """Two guardians of a folder, whose noise is secure."""
    return circle(noise=lambda _: SecureNoise(), folder=folder, declaration=declared(source="secure"))


def begun(**settings) -> tuple[dict[str, Guardian], list[Ciphertext]]:
    """Two guardians, and every client's ciphertext of round 0 for them."""
    guardians = circle(**settings)
    return guardians, ciphertexts(call(), cards_of(guardians))


def received(guardians: dict[str, Guardian], written: list[Ciphertext]) -> list[dict]:
    return [g.receive(call(), REQUEST, shares(written, place)) for place, g in enumerate(guardians.values())]


def total(guardians: dict[str, Guardian], written: list[Ciphertext], **changes) -> np.ndarray:
    return committee(guardians).collect_sums(call(**changes), REQUEST, written)


# --- ciphertexts ----------------------------------------------------------------------------------------


OWN = fresh_keys()
ONE = ciphertexts(call(), {"guardian1": OWN.card, "guardian2": fresh_keys().card}, site="north")[2]
OTHER = {"run": "another", "round": 1, "plan": "q" * 64, "question": "0" * 64}
OTHER |= {"client": 3, "site": "south", "guardian": "guardian2", "share_id": "00" * 8}


def opened(sealed: bytes = ONE.sealed[0], key=OWN.sealing, **changes) -> bytes | None:
    """Open a share as what it was sealed for, but for some changes."""
    bound = {"client": 2, "site": "north", "guardian": "guardian1", "share_id": ONE.share_id} | vars(call()) | changes
    asked = Call(**{name: bound.pop(name) for name in vars(call())})
    return open_share(key, sealed, asked, **bound)


@pytest.mark.parametrize("name", OTHER)
def test_a_share_opens_for_nothing_but_what_it_was_sealed_for(name: str) -> None:
    assert opened() is not None
    assert opened(**{name: OTHER[name]}) is None


def test_a_share_that_was_bent_opens_never() -> None:
    sealed = ONE.sealed[0]
    flipped = sealed[:40] + bytes([sealed[40] ^ 1]) + sealed[41:]
    for bent in (sealed[:-1], sealed + b"x", flipped, b""):
        assert opened(bent) is None
    assert opened(key=fresh_keys().sealing) is None


# --- sums -------------------------------------------------------------------------------------------


def test_a_client_that_is_missing_at_one_guardian_counts_as_zero_at_all() -> None:
    guardians, written = begun(noise=Silence)
    names = list(guardians)
    signed = [
        guardians[names[0]].receive(call(), REQUEST, shares(written, 0)[1:]),
        guardians[names[1]].receive(call(), REQUEST, shares(written, 1)[:-1]),
    ]
    assert agreement(signed, cards_of(guardians), call())[0] == tuple(range(1, N - 1))
    got = total(guardians, written)
    # The same clients written anew to fresh guardians, without those two: the same sum.
    again = circle(noise=Silence)
    fewer = ciphertexts(call(), cards_of(again))[1:-1]
    assert got.tolist() == total(again, fewer).tolist()


def test_shares_of_two_ciphertexts_of_one_client_never_meet() -> None:
    guardians = circle(noise=Silence)
    first, second = (ciphertexts(call(), cards_of(guardians)) for _ in range(2))
    mixed = [dataclasses.replace(a, sealed=(a.sealed[0], b.sealed[1])) for a, b in zip(first, second, strict=True)]
    names = list(guardians)
    guardians[names[0]].receive(call(), REQUEST, shares(mixed, 0))
    guardians[names[1]].receive(call(), REQUEST, shares(second, 1))
    assert not total(guardians, mixed).any()


def test_hostile_envelopes_count_for_nothing_and_the_first_of_a_client_counts() -> None:
    guardians, written = begun(noise=Silence)
    foreign = ciphertexts(call(), {name: fresh_keys().card for name in guardians})
    junk = [
        Ciphertext(client=N, share_id="00" * 8, sealed=written[0].sealed),
        Ciphertext(client=-1, share_id="00" * 8, sealed=written[0].sealed),
        dataclasses.replace(written[0], client=1),
        foreign[2],
    ]
    swapped = dataclasses.replace(written[3], sealed=written[3].sealed[::-1])
    fresh = {name: guardian(name, keys=g.keys, cards=g.cards, noise=Silence(0)) for name, g in guardians.items()}
    honest = total(fresh, written)
    assert total(guardians, [*junk, swapped, *written, *written]).tolist() == honest.tolist()


# --- charge, make durable, then sum ---------------------------------------------------------------------


def test_nothing_is_read_before_the_charge_is_durable(tmp_path) -> None:
    guardians, written = begun(folder=tmp_path)
    here, seen = guardians["guardian1"], []

    def arrays(round_: int):
        with Ledger.open(tmp_path / "guardian1" / "ledger.sqlite") as book:
            seen.append([entry.release_id for entry in book.entries()])
        return here.store.arrays(round_)

    guardians["guardian1"] = dataclasses.replace(here, store=Changed(here.store, arrays=arrays))
    total(guardians, written)
    assert seen == [[f"{RUN}/0"]]


def test_louder_questions_than_the_plans_are_refused() -> None:
    """A server that asks for less noise names another event, which no guardian's plan holds."""
    guardians = circle(noise_multiplier=0.5)
    asked = call(question=question_digest(mechanism(REQUEST, noise_multiplier=0.5), REQUEST))
    written = ciphertexts(asked, cards_of(guardians), noise_multiplier=0.5)
    with pytest.raises(LedgerError, match="is not in the plan"):
        committee(guardians).collect_sums(asked, REQUEST, written)


# --- one answer to a round ------------------------------------------------------------------------------


def test_a_round_gets_the_same_bytes_again_also_after_a_restart(tmp_path) -> None:
    first = lasting(tmp_path)
    signed = received(first, ciphertexts(call(), cards_of(first)))
    answers = [g.answer(call(), REQUEST, signed) for g in first.values()]
    restarted = lasting(tmp_path)
    assert received(restarted, ciphertexts(call(), cards_of(first), seed=9)) == signed
    assert [g.answer(call(), REQUEST, signed) for g in restarted.values()] == answers
    assert not list(tmp_path.glob("*/rounds/*.npz"))  # what was answered is gone


def test_a_second_set_of_clients_gets_the_first_answer_or_none() -> None:
    guardians, written = begun()
    first = total(guardians, written)
    assert total(guardians, written[1:]).tolist() == first.tolist()
    asked = dataclasses.replace(REQUEST, weights=np.roll(REQUEST.weights, 1, axis=1))
    other = call(request=asked)
    with pytest.raises(RunError, match="asked before in another way"):
        committee(guardians).collect_sums(other, asked, ciphertexts(other, cards_of(guardians), asked))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", ["put_arrays", "put_statement", "charge", "arrays", "gaussian", "store", "drop_arrays"])
def test_killed_at_any_point_no_round_gets_two_noises_and_none_is_unpaid(at: str, after: bool, tmp_path) -> None:
    """Dies before or after each step that leaves a trace; what had left is what leaves again."""
    written = ciphertexts(call(), cards_of(lasting(tmp_path)))

    def answer(spoilt=lambda one: one) -> bytes:
        both = lasting(tmp_path)
        one = both["guardian1"] = spoilt(both["guardian1"])
        return one.answer(call(), REQUEST, received(both, written)).payload

    with pytest.raises(KeyboardInterrupt):
        answer(lambda one: dying(one, at, after=after))
    left = {answer(), answer()}
    assert len(left) == 1
    with Ledger.open(tmp_path / "guardian1" / "ledger.sqlite") as book:
        assert [entry.release_id for entry in book.entries()] == [f"{RUN}/0"]
        assert {book.stored_release(f"{RUN}/0")} == left


def dying(one: Guardian, at: str, *, after: bool) -> Guardian:
    def dead(inner: object, name: str) -> Changed:
        def call_and_die(*given, **named):
            if after:
                getattr(inner, name)(*given, **named)
            raise KeyboardInterrupt

        return Changed(inner, **{name: call_and_die})

    if at == "gaussian":
        noise = Changed(one.noise, stream=lambda label: dead(one.noise.stream(label), "gaussian"))
        return dataclasses.replace(one, noise=noise)
    if at in ("charge", "store"):
        with one.ledger() as book:
            killed = dead(book, {"charge": "charge", "store": "store_release"}[at])
        return dataclasses.replace(one, ledger=lambda: contextlib.nullcontext(killed))
    return dataclasses.replace(one, store=dead(one.store, at))


# --- what a server may show -------------------------------------------------------------------------------


def test_guardians_that_are_shown_different_rounds_plans_or_questions_sum_nothing() -> None:
    guardians, written = begun()
    first, second = guardians.values()
    later = ciphertexts(call(1), cards_of(guardians))
    signed = [
        first.receive(call(), REQUEST, shares(written, 0)),
        second.receive(call(1), REQUEST, shares(later, 1)),
    ]
    with pytest.raises(RunError, match="was shown another round"):
        first.answer(call(), REQUEST, signed)
    for changed in ({"run": "other"}, {"plan": "q" * 64}):
        with pytest.raises(RunError, match="another plan"):
            second.receive(dataclasses.replace(call(), **changed), REQUEST, [])
    with pytest.raises(RunError, match="not the one that shares were encrypted for"):
        second.receive(dataclasses.replace(call(2), question="0" * 64), REQUEST, [])
    assert all(not g.store.arrays(2) for g in guardians.values())


def shorter(statement: dict, keys) -> dict:
    return dataclasses.replace(Statement.read(statement), share_ids={}).signed(keys)


BENT = {
    "forged": lambda signed, _: signed[1]["content"]["share_ids"].pop("0"),
    "missing": lambda signed, _: signed.pop(),
    "twice": lambda signed, _: signed.append(signed[0]),
    "foreign key": lambda signed, _: signed.insert(0, shorter(signed.pop(0), fresh_keys())),
    "shorter set": lambda signed, first: signed.insert(0, shorter(signed.pop(0), first.keys)),
    "no statement": lambda signed, _: signed.__setitem__(1, {"content": 3}),
}


@pytest.mark.parametrize("bent", BENT)
def test_only_every_guardians_own_statement_makes_an_agreement(bent: str) -> None:
    guardians, written = begun()
    first, _ = guardians.values()
    signed = copy.deepcopy(received(guardians, written))
    BENT[bent](signed, first)
    with pytest.raises((RunError, LedgerError)):
        first.answer(call(), REQUEST, signed)
    for each in guardians.values():
        with each.ledger() as book:
            assert book.entries() == []


def test_a_guardian_that_has_received_nothing_sums_nothing() -> None:
    guardians, written = begun()
    first, second = guardians.values()
    signed = received({"guardian1": first}, written)
    with pytest.raises(RunError, match="has received nothing"):
        second.answer(call(), REQUEST, signed)


def test_an_answer_that_is_not_a_guardians_own_is_no_release() -> None:
    guardians, written = begun()

    own = guardians["guardian2"]

    def louder(answer):
        found = NoisySum.decode(answer.payload)
        return dataclasses.replace(answer, payload=dataclasses.replace(found, total=found.total + 1).encode())

    def stranger(answer):
        return dataclasses.replace(answer, receipt=dict(answer.receipt) | {"key": fresh_keys().card.signing})

    def below_its_ledger(answer):
        payload = dataclasses.replace(NoisySum.decode(answer.payload), sequence=-5).encode()
        said = {"sequence": -5, "sum": hashlib.sha256(payload).hexdigest()}
        return dataclasses.replace(signing(lambda content: content | said)(answer), payload=payload)

    def signing(change):
        """What a guardian signs in place of its receipt."""
        return lambda answer: dataclasses.replace(
            answer, receipt=sign(own.keys.signing, ANSWERED, change(answer.receipt["content"]))
        )

    odd = ({"sequence": -5}, {"sequence": "1"}, {"head": "\x1b[2J"}, {"more": 1}, {"run": None})
    signed = [signing(lambda content, changes=changes: content | changes) for changes in odd]
    signed += [signing(lambda content: list(content.items())), signing(lambda _: 3)]
    signed += [signing(lambda content: content | {"sequence": float(content["sequence"])})]
    for bend in (louder, stranger, below_its_ledger, *signed):
        lying = Changed(own, answer=lambda *given, bend=bend: bend(own.answer(*given)))
        with pytest.raises((RunError, LedgerError)):
            committee(guardians | {"guardian2": lying}).collect_sums(call(), REQUEST, written)
    assert total(guardians, written).any()
    with pytest.raises(LedgerError, match="no guardian's sum"):
        NoisySum.decode(b"nothing of the kind")


# --- keys -------------------------------------------------------------------------------------------------


def test_a_guardian_with_a_new_signing_key_says_the_same_again_with_it() -> None:
    guardians, written = begun()
    old = received(guardians, written)
    renewed = dataclasses.replace(guardians["guardian2"].keys, signing=fresh_keys().signing)
    cards = cards_of(guardians) | {"guardian2": renewed.card}
    after = {name: dataclasses.replace(each, cards=cards) for name, each in guardians.items()}
    after["guardian2"] = dataclasses.replace(after["guardian2"], keys=renewed)
    with pytest.raises(RunError, match="not signed with the key that is registered"):
        after["guardian1"].answer(call(), REQUEST, old)
    new = received(after, written)
    assert [statement["content"] for statement in new] == [statement["content"] for statement in old]
    assert committee(after).collect_sums(call(), REQUEST, written).any()


def test_a_guardian_that_lost_its_ledger_answers_no_round_a_second_time() -> None:
    guardians, written = begun()
    total(guardians, written)
    blank = guardian("guardian2", keys=guardians["guardian2"].keys, cards=cards_of(guardians), noise=SimulatedNoise(99))
    again = dict(guardians) | {"guardian2": blank}
    with pytest.raises(RunError, match="one of them was lost"):
        total(again, ciphertexts(call(1), cards_of(guardians)), round_=1)
    # Asked for the round it had answered, over the same ciphertexts, its noise would be a second one: the other's
    # answer stands, and the statements differ in nothing but ... its own, which is new; the digest holds it.
    with pytest.raises(RunError):
        total(again, ciphertexts(call(), cards_of(guardians)))


# ---- the server's ciphertext box: one fixed-size ciphertext per client, anything else dropped without a word


WRITTEN = ciphertexts(call(), cards_of(circle()))
SENT = encode_ciphertext(0, WRITTEN[0])


def test_ciphertexts_arrive_as_they_were_written_in_the_order_of_clients() -> None:
    found = CiphertextBox(0, REQUEST, 2)
    for ciphertext in reversed(WRITTEN):
        found.receive(ciphertext.client, encode_ciphertext(0, ciphertext))
    assert list(found.close()) == WRITTEN
    assert found.refused == {}


# Numbers of clients and messages of other types: tests/door/test_payload.py.
@pytest.mark.parametrize(
    ("client", "message", "reason"),
    [
        (N, SENT, "unknown client"),
        (1, SENT[:-1], "wrong size"),
        (1, b"x" + SENT[1:], "no ciphertext"),
        (1, encode_ciphertext(1, WRITTEN[0]), "another round"),
        (0, SENT, "duplicate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # ciphertexts are random
)
def test_what_is_no_ciphertext_of_this_round_is_dropped_and_decides_no_other(client, message, reason: str) -> None:
    found = CiphertextBox(0, REQUEST, 2)
    found.receive(0, SENT)
    found.receive(client, message)
    assert found.refused == {reason: 1}
    assert list(found.close()) == WRITTEN[:1]
