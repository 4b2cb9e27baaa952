"""Signed JSON files of strangers, read strictly: every value has its one type, and no file holds more than it should.

Formats are a ledger's and its signatures' (``accountant.ledger``), written down a second time on purpose.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

BUNDLE, RECEIPT, ANSWERED = "bundle", "receipt", "guardian's answer"
_FILES = (BUNDLE, RECEIPT)
_LONGEST = 100  # characters of a stranger's name that a line quotes


class BundleError(Exception):
    """A file that is no bundle, or says what cannot be so.

    Example:
        >>> whole(True, "sequence")
        Traceback (most recent call last):
        accountant.verify.reading.BundleError: sequence is True, and no whole number
    """


class AlteredError(BundleError):
    """A signed file that is not as it was signed."""


def read_signed(path: Path, purpose: str) -> tuple[Json, str]:
    """Read a signed file: its content, and the public key that signed it.

    Raises:
        BundleError: If it is no such file, or not as it was signed.
        OSError: If it cannot be read.
    """
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise BundleError("it holds no JSON; give the file that privbo wrote") from None
    statement = table(found, f"this {purpose}", ("content", "key", "signature"))
    content = table(statement["content"], "content")
    require_signed(content, statement["key"], statement["signature"], purpose)
    return content, str(statement["key"])


def require_signed(content: Json, key: object, signature: object, purpose: str) -> None:
    """Refuse a content that this key has not signed for this purpose.

    Raises:
        BundleError: Saying so.
    """
    public, signed = bytes.fromhex(hexadecimal(key, "key", 64)), bytes.fromhex(hexadecimal(signature, "signature", 128))
    if not _is_good(public, signed, purpose, content):
        for other in _FILES:
            if _is_good(public, signed, other, content):
                raise BundleError(f"this is a signed {other} and no {purpose}; name the other file")
        raise AlteredError(f"this {purpose} was altered after signing; ask for a genuine one")


def _is_good(public: bytes, signature: bytes, purpose: str, content: Json) -> bool:
    # prices read events here too, and need no cryptography
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            signature, f"privbo {purpose} 1\n".encode() + canonical(content)
        )
    except InvalidSignature:
        return False
    return True


def canonical(content: object) -> bytes:
    """JSON bytes that are equal exactly when the contents are."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256_of(*parts: str | bytes) -> str:
    """SHA-256 over length-prefixed parts, as a ledger chains its rows."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


def _once(pairs: Sequence[tuple[str, object]]) -> Json:
    """A table of which no two keys are the same: two readers would each believe another one."""
    if len(found := dict(pairs)) < len(pairs):
        raise BundleError("a table names a key twice")
    return found


def table(value: object, name: str, keys: Collection[str] | None = None, optional: Collection[str] = ()) -> Json:
    """A table, with these keys alone if any are named."""
    if not isinstance(value, dict):
        raise BundleError(f"{name} is {quoted(value)}, and no table")
    if keys is not None and (wrong := (value.keys() ^ set(keys)) - (set(optional) & value.keys())):
        raise BundleError(f"{name} lacks or should not have: {', '.join(map(quoted, sorted(wrong)))}")
    return value


def rows(value: object, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise BundleError(f"{name} is {quoted(value)}, and no list")
    return value


def text(value: object, name: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise BundleError(f"{name} is {quoted(value)}, and no text")
    return value


def one_of(value: object, name: str, known: Collection[str] | Mapping[str, object]) -> str:
    """One of a few words."""
    if text(value, name) not in known:
        raise BundleError(f"{name} is {quoted(value)}, and none of {', '.join(known)}")
    return str(value)


def hexadecimal(value: object, name: str, digits: int) -> str:
    """So many hexadecimal digits, in small letters."""
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", text(value, name)):
        raise BundleError(f"{name} is {quoted(value)}, and not {digits} hexadecimal digits")
    return str(value)


def whole(value: object, name: str) -> int:
    """A whole number, at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BundleError(f"{name} is {quoted(value)}, and no whole number")
    return value


def number(value: object, name: str) -> float:
    """A finite number, at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BundleError(f"{name} is {quoted(value)}, and no number from 0 on")
    return float(value)


def quoted(value: object) -> str:
    r"""Quote a stranger's value within a line: short, and without spaces that would push words to the next one.

    Example:
        >>> quoted("ward   7")
        "'ward\\x20\\x20 7'"
    """
    words = repr(value)
    if len(words) > _LONGEST:
        words = words[:_LONGEST] + "..."
    return re.sub(" (?= )", r"\\x20", words)
