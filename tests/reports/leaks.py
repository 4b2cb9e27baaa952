"""Looking for private numbers in what is published, and for published bytes that depend on them.

``leaks`` searches files for numbers and words; it reads Parquet and SQLite as their
programs do. ``scramble`` changes every number of a private folder, so that whatever is
written again from it can be held against what was written before: a public file that
differs depends on something private, in whatever form.
"""

import json
import re
import sqlite3

import numpy as np

PRIVATE_WORDS = (
    "clipped_share", "n_participants", "participants", "norm_quantiles", "bias", "n_absent", "best_so_far",
    "best_score", "best_per_client", "mean_per_client", "signal", "by_seed", "curve",
)  # fmt: skip

# The private side repeats public numbers: the clipping bound, the setting's price.
PUBLIC_KEYS = {
    "round", "label", "kind", "seed", "epsilon", "delta", "strict_epsilon", "strict_delta",
    "noise_multiplier", "noise_multipliers",
    "releases", "bound", "bound_factors", "norm_levels",
}  # fmt: skip


def numbers(content: object) -> set[float]:
    """Every float in JSON-like data but those under a public key."""
    if isinstance(content, dict):
        return set().union(*(numbers(v) for key, v in content.items() if key not in PUBLIC_KEYS), set())
    if isinstance(content, list | tuple):
        return set().union(*(numbers(value) for value in content)) if content else set()
    if isinstance(content, np.ndarray):
        return set(content[np.isfinite(content)].ravel().tolist()) if content.dtype.kind == "f" else set()
    return {float(content)} if isinstance(content, float) else set()


def telling(values) -> set[float]:
    """Numbers that no other file holds by chance: no round ones."""
    return {v for v in values if np.isfinite(v) and abs(v) > 1e-9 and v != round(v, 2)}


def held(path) -> object:
    """What a file of arrays, of lines or of a table holds, and nothing of any other."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return dict(archive)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text()) if path.suffix == ".json" else None


def private_folder_numbers(folder) -> set[float]:
    """Every number below a folder's private side, but those of public files in it (a cell's own run)."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in {"config.json", "history.jsonl"})
    return telling(numbers([held(path) for path in files]))


def sets_as_text(participants: np.ndarray) -> set[bytes]:
    """The forms in which a set of participants could be written down."""
    lists = [np.flatnonzero(participants).tolist(), participants.tolist(), participants.astype(int).tolist()]
    forms = {json.dumps(form, separators=(",", sep)).encode() for form in lists for sep in (":", ": ")}
    forms |= {json.dumps(form).encode() for form in lists}
    return forms | {participants.astype(bool).tobytes(), participants.astype(np.int64).tobytes()}


def leaks(files, private: set[float], sets=()) -> list[str]:
    """Files that hold a private number (as text or as bytes), set or word."""
    found = []
    for path in files:
        content = path.read_bytes() + _inside(path)
        seen = content.decode("latin-1")
        written = {float(word) for word in _NUMBER.findall(seen)} | _stored(content)
        found += [f"{path.name}: {v!r}" for v in sorted(private & written)]
        found += [f"{path.name}: {word}" for word in PRIVATE_WORDS if f'"{word}' in seen]
        found += [f"{path.name}: a set of participants" for form in sets if form in content]
    return found


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def _stored(content: bytes) -> set[float]:
    """Every eight bytes read as a float of either order."""
    parts = (content[start : start + (len(content) - start) // 8 * 8] for start in range(8))
    return numbers([np.frombuffer(part, dtype=order) for part in parts for order in ("<f8", ">f8")])


def _inside(path) -> bytes:
    """What a file holds once its own program has read it."""
    if path.suffix == ".parquet":
        import pandas as pd

        frame = pd.read_parquet(path)
        return frame.to_json(double_precision=15).encode() + b"".join(
            np.ascontiguousarray(frame[name]).tobytes() for name in frame.columns if frame[name].dtype.kind in "fi"
        )
    if path.suffix in {".sqlite", ".db"}:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
            return "\n".join(store.iterdump()).encode()
    return b""


def public_files(folder):
    """Every file outside the private side."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and "private" not in p.relative_to(folder).parts)


def scramble(folder) -> None:
    """Change every number below a private folder."""
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        if path.suffix == ".npz":
            np.savez(path, **_moved(held(path)))
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(_moved(row)) + "\n" for row in held(path)))
        elif path.suffix == ".json" and path.name not in {"seed.json", "config.json"}:
            path.write_text(json.dumps(_moved(held(path))))


def _moved(content):
    if isinstance(content, dict):
        return {key: value if key in PUBLIC_KEYS else _moved(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_moved(value) for value in content]
    if isinstance(content, np.ndarray):
        return content * 0.7310585 + 0.0112358 if content.dtype.kind == "f" else content
    return content * 0.7310585 + 0.0112358 if isinstance(content, float) else content
