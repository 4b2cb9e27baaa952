"""Clients' states are appended to, survive a cut at any byte, and are rewritten before they have doubled for long."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import privbo as pb
from privbo.runs.states import Stamp, States, applied, difference

STAMP = Stamp(round=3, sequence=7, head="ab")
ARRAYS = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
    elements=st.sampled_from([0.0, -0.0, 1.5, np.nan, np.inf]),
)


def require_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()  # the sign of a zero, too


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), ARRAYS), st.dictionaries(st.sampled_from("abc"), ARRAYS))
def test_a_state_is_the_one_before_and_what_changed(old, new):
    require_same(applied(old, difference(old, new)), new)
    require_same(applied(None, difference(None, new)), new)
    assert not difference(new, new)


def state(t: int) -> dict[str, np.ndarray]:
    values = np.arange(50 * t, dtype=np.float64).reshape(t, 50).T
    return {"values": np.ascontiguousarray(values), "rounds": np.arange(t), "fit": np.full(50, float(t))}


def test_a_file_cut_at_any_byte_holds_the_last_whole_state_and_goes_on(tmp_path: Path):
    states = States(path=tmp_path / "clients-0.states")
    assert states.load() is None
    assert states.stamp() is None
    states.append(difference(None, state(8)), STAMP)
    first = states.path.stat().st_size
    states.append(difference(state(8), state(9)), Stamp(round=4, sequence=8, head="cd"))
    whole = states.path.read_bytes()
    for size in {*range(first, len(whole), 37), len(whole) - 1}:
        states.path.write_bytes(whole[:size])
        require_same(states.load(), state(8))
        assert states.stamp() == STAMP
        States(path=states.path).append(difference(state(8), state(9)), Stamp(round=4, sequence=8, head="cd"))
        require_same(states.load(), state(9))
        assert states.stamp().round == 4


@pytest.mark.parametrize("at", [3, 17, 25, 33, 300])
def test_a_byte_that_changed_in_the_middle_is_refused(at: int, tmp_path: Path):
    """In the mark of a frame, in one of its lengths, in its checksum, in what it holds."""
    states = States(path=tmp_path / "clients-0.states")
    states.append(difference(None, state(8)), STAMP)
    states.append(difference(state(8), state(9)), STAMP)
    damaged = bytearray(states.path.read_bytes())
    damaged[at] ^= 1
    states.path.write_bytes(bytes(damaged))
    for look in (states.load, states.stamp, lambda: States(path=states.path).append({}, STAMP)):
        with pytest.raises(pb.RunError, match="damaged in the middle"):
            look()
    assert states.path.read_bytes() == bytes(damaged)


@pytest.mark.parametrize("kept", [0, 36, 60, 400])
def test_a_last_frame_whose_bytes_never_reached_the_disk_is_dropped(kept: int, tmp_path: Path):
    """A machine that loses its power may leave a file as long as it was to be, with zeros in its place."""
    states = States(path=tmp_path / "clients-0.states")
    states.append(difference(None, state(8)), STAMP)
    first = states.path.stat().st_size
    states.append(difference(state(8), state(9)), STAMP)
    whole = states.path.read_bytes()
    for _ in range(2):
        states.path.write_bytes(whole[: first + kept] + bytes(len(whole) - first - kept))
        require_same(States(path=states.path).load(), state(8))
        States(path=states.path).append(difference(state(8), state(9)), STAMP)
        require_same(States(path=states.path).load(), state(9))


def test_what_a_long_run_writes_grows_like_its_history_and_not_like_its_square(tmp_path: Path):
    written = {}
    for rounds in (100, 400):
        states, last, total = States(path=tmp_path / f"clients-{rounds}.states"), None, 0
        for t in range(1, rounds + 1):
            before = states.path.stat().st_size if states.path.exists() else 0
            states.append(difference(last, state(t)), STAMP)
            last, after = state(t), states.path.stat().st_size
            total += after - before if after > before else after + sum(a.nbytes for a in last.values())
        require_same(states.load(), state(rounds))
        assert states.path.stat().st_size < 3 * sum(a.nbytes for a in last.values()) + 1200 * rounds
        written[rounds] = total
    assert written[400] < 6 * written[100]  # 16 times if the whole were written every round
