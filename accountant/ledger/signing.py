"""Signed statements about a ledger: Ed25519 through ``cryptography``, nothing of our own.

A statement is JSON; what is signed is its canonical form with a purpose in front, so that a
signature for one purpose is none for another. The public key travels with it: who owns the key
is for the reader to know.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from accountant.errors import DisagreementError, LedgerError
from accountant.events import Json
from accountant.ledger.durable import appearing_whole
from accountant.ledger.policy import canonical

BUNDLE, RECEIPT, ANSWERED = "bundle", "receipt", "guardian's answer"
FILES = (BUNDLE, RECEIPT)  # purposes of files that people hand on, and may mix up


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key at a path; makes one, for its owner's eyes only, where there is none.

    Raises:
        LedgerError: If what stands there is no key.
    """
    try:
        return Ed25519PrivateKey.from_private_bytes(
            kept_secret(path, lambda: Ed25519PrivateKey.generate().private_bytes_raw())
        )
    except ValueError as error:
        raise LedgerError(f"{path} holds no signing key ({error}); restore it from a copy or move it away") from None


def kept_secret(path: Path, make: Callable[[], bytes]) -> bytes:
    """Read the bytes at a path; makes them, durable and for their owner's eyes only, where there are none.

    They appear under their name whole or not at all, whichever process is killed and however many make them at once.
    """
    if not path.exists():
        with suppress(FileExistsError), appearing_whole(path) as draft:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(make())
                file.flush()
                os.fsync(file.fileno())
    return path.read_bytes()


def sign(key: Ed25519PrivateKey, purpose: str, content: Json) -> Json:
    """Sign a statement for one purpose: it, the public key in 64 hexadecimal digits, and the signature in 128.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> checked(sign(Ed25519PrivateKey.generate(), "greeting", {"says": "hello"}), "greeting")
        {'says': 'hello'}
    """
    signature = key.sign(_bytes(purpose, content)).hex()
    return {"content": content, "key": key.public_key().public_bytes_raw().hex(), "signature": signature}


def checked(statement: object, purpose: str) -> Json:
    """Give a statement's content once its signature is known to be good.

    Raises:
        LedgerError: If it is no signed statement, or one for another purpose.
        DisagreementError: If it is not as it was signed.
    """
    try:
        content, key, signature = (statement[name] for name in ("content", "key", "signature"))  # type: ignore[index]  # refused below
        content = {**content}
        public, signed = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)), bytes.fromhex(signature)
        if not _is_good(public, signed, _bytes(purpose, content)):
            for other in FILES:
                if _is_good(public, signed, _bytes(other, content)):
                    raise LedgerError(f"this is a signed {other} and no {purpose}; name the other file")
            raise DisagreementError(f"this {purpose} was altered after signing; ask for a genuine one")
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise LedgerError(f"this is no signed {purpose} ({error!r}); ask for a whole one") from None
    return content


def _is_good(public: Ed25519PublicKey, signature: bytes, said: bytes) -> bool:
    try:
        public.verify(signature, said)
    except InvalidSignature:
        return False
    return True


def _bytes(purpose: str, content: Json) -> bytes:
    return f"privbo {purpose} 1\n".encode() + canonical(content)
