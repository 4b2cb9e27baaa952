import numpy as np
import pytest

from privbo.protocol.errors import RunError
from privbo.protocol.files import (
    Journal,
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


@pytest.mark.parametrize("durable", [False, True])
def test_a_journal_drops_a_torn_tail_and_goes_on(durable, tmp_path) -> None:
    path, records = tmp_path / "records", [b"first", b"second\n", b"third" * 9]
    whole = Journal(path, durable=durable)
    for record in records:
        whole.append(record)
    whole.close()
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size] + bytes(size % 7))  # zeros: a machine that lost its power
        kept = list(Journal(path, durable=durable).records())
        assert kept == records[: len(kept)]
        again = Journal(path, durable=durable)
        again.append(b"next")
        again.close()
        assert list(Journal(path, durable=durable).records()) == [*kept, b"next"]


def test_damage_before_the_end_is_refused_where_records_are_durable_and_cut_off_where_not(tmp_path) -> None:
    journal = Journal(tmp_path / "records", durable=True)
    for record in (b"first", b"second", b"third"):
        journal.append(record)
    content = bytearray(journal.path.read_bytes())
    content[content.index(b"second")] ^= 1
    journal.path.write_bytes(bytes(content))
    with pytest.raises(RunError, match="damaged in the middle"):
        list(Journal(journal.path, durable=True).records())
    assert list(Journal(journal.path, durable=False).records()) == [b"first"]


def test_after_an_error_the_next_record_stands_behind_the_last_whole_one(tmp_path, monkeypatch) -> None:
    journal = Journal(tmp_path / "records", durable=True)
    journal.append(b"first")
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            journal.append(b"second")
    journal.append(b"third")
    assert list(Journal(journal.path, durable=True).records()) == [b"first", b"third"]
