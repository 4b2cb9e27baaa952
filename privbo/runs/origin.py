"""Whether a run's directory was made by this user, so that the code and the ledger it names may be followed.

A directory from a stranger names code, too, and resuming it would run that code; the ledger it names may be a
stranger's server, or any file of this user's. A run that is
made here is therefore marked on its private side with a keyed digest of its manifest; the key
never leaves the user's state folder (``$XDG_STATE_HOME/privbo/key``).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from privbo.protocol.errors import RunError
from privbo.protocol.files import write_atomically

_KEY_BYTES = 32


def mark(manifest: Path, marker: Path) -> None:
    """Mark a manifest as made here; without a place for the key the directory stays unmarked."""
    if (key := _key(make=True)) is not None:
        write_atomically(marker, _digest(key, manifest))


def is_ours(manifest: Path, marker: Path) -> bool:
    """Tell whether this user made a directory, and nobody changed its manifest since."""
    key = _key(make=False)
    return key is not None and marker.is_file() and hmac.compare_digest(marker.read_bytes(), _digest(key, manifest))


def require_ours(manifest: Path, marker: Path) -> None:
    """Refuse a directory that this user did not make.

    Raises:
        RunError: If it bears no mark of this user's, or its manifest was changed since.
    """
    if not is_ours(manifest, marker):
        raise RunError(
            f"{manifest.parent} was not made by this user; going on with it runs the code and opens the ledger that "
            "its config.json names; add --trust if you trust it"
        )


def _digest(key: bytes, manifest: Path) -> bytes:
    return hmac.new(key, manifest.read_bytes(), hashlib.sha256).hexdigest().encode()


def _key(*, make: bool) -> bytes | None:
    """This user's key; None where there is none and none can be made."""
    base = os.environ.get("XDG_STATE_HOME")
    try:
        path = (Path(base) if base else Path.home() / ".local" / "state") / "privbo" / "key"
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = path.with_name(f"key.{secrets.token_hex(8)}")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(beside, path)  # the first of several processes wins
            except FileExistsError:
                pass
            finally:
                beside.unlink()
        found = path.read_bytes()
    except (OSError, RuntimeError):  # no home, or nothing may be written there
        return None
    return found if len(found) == _KEY_BYTES else None
