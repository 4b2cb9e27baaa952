import numpy as np
import pytest

from privbo.protocol.errors import RunError
from privbo.protocol.files import (
    OnceLines,
    append_line,
    load_arrays,
    read_lines,
    save_arrays,
    write_atomically,
)


def test_a_crash_while_writing_leaves_the_old_content(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path) -> None:
    path = tmp_path / "lines"
    append_line(path, {"a": 1})
    append_line(path, {"a": 2})
    with path.open("ab") as file:
        file.write(b'{"a": 3')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    assert read_lines(tmp_path / "none") == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_line_that_was_cut_off_spoils_none_that_comes_after_it(durable, tmp_path) -> None:
    path = tmp_path / "lines"
    for cut in (b'{"a": 0', b'{"a": 3'):
        with path.open("ab") as file:
            file.write(cut)
        append_line(path, {"a": 1}, durable=durable)
        append_line(path, {"a": 2}, durable=durable)
    assert [row["a"] for row in read_lines(path)] == [1, 2, 1, 2]


def test_arrays_round_trip_without_pickles(tmp_path) -> None:
    path = tmp_path / "arrays.npz"
    arrays = {"a": np.arange(3.0), "b": np.array([[True]]), "c": np.zeros((0, 2))}
    save_arrays(path, arrays)
    for name, array in load_arrays(path).items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype
    with pytest.raises(TypeError, match="objects"):
        save_arrays(path, {"a": np.array([object()])})
    np.savez(path, a=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        load_arrays(path)


def test_lines_that_several_writers_add_stand_once_and_never_change(tmp_path) -> None:
    path = tmp_path / "lines"
    writers = [OnceLines(path=path, key="round") for _ in range(3)]
    for index in range(4):
        for writer in writers:
            writer.add({"round": index, "head": f"h{index}"})
    with path.open("ab") as file:
        file.write(b'{"round": 9, "hea')  # a crash while appending
    OnceLines(path=path, key="round").add({"round": 4, "head": "h4"})
    assert read_lines(path) == [{"round": index, "head": f"h{index}"} for index in range(5)]
    with pytest.raises(RunError, match="ledger and history disagree"):
        writers[0].add({"round": 1, "head": "another"})
    assert len(read_lines(path)) == 5
