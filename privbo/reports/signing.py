"""The key with which a run's operator signs what leaves: private, its public half on every page that a reader keeps."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accountant.ledger.signing import signing_key
from privbo.protocol.files import private_folder
from privbo.runs.manifest import RunDirectory

_NAME = "signing.key"


def operator_key(home: RunDirectory) -> Ed25519PrivateKey:
    """Read the key of who runs it; makes one where there is none."""
    return signing_key(private_folder(home.path) / _NAME)


def public_key(home: RunDirectory) -> str:
    """Give its public half, 64 hexadecimal digits; makes a key where there is none."""
    return operator_key(home).public_key().public_bytes_raw().hex()


def known_public_key(home: RunDirectory) -> str | None:
    """Give the public half of a key that is there; None without one."""
    return public_key(home) if (home.private / _NAME).exists() else None
