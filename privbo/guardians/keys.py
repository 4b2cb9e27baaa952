"""Keys of a guardian: one to which clients seal shares (X25519), one that signs what it says (Ed25519)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from pydantic import Field

from accountant.ledger.signing import kept_secret, signing_key
from privbo.protocol.errors import RunError
from privbo.protocol.settings import settings


@settings(table="guardians")
class Card:
    """Public keys of one guardian, 64 hexadecimal digits each; fixed and public for the length of a run.

    Attributes:
        sealing: Shares for it are sealed to this key.
        signing: What it says is signed with the key that belongs to this one.
    """

    sealing: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signing: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @property
    def sealing_key(self) -> X25519PublicKey:
        """The key that shares are sealed to."""
        return X25519PublicKey.from_public_bytes(bytes.fromhex(self.sealing))


@dataclass(frozen=True, kw_only=True)
class GuardianKeys:
    """Private keys of one guardian, which leave its machine never.

    Attributes:
        sealing: Opens shares.
        signing: Signs statements and answers.
    """

    sealing: X25519PrivateKey
    signing: Ed25519PrivateKey

    @property
    def card(self) -> Card:
        """The public halves."""
        return Card(
            sealing=self.sealing.public_key().public_bytes_raw().hex(),
            signing=self.signing.public_key().public_bytes_raw().hex(),
        )


def fresh_keys() -> GuardianKeys:
    """Draw keys that live as long as the process."""
    return GuardianKeys(sealing=X25519PrivateKey.generate(), signing=Ed25519PrivateKey.generate())


def guardian_keys(folder: Path) -> GuardianKeys:
    """Read a guardian's keys from its folder; draws them, for its owner's eyes only, where there are none.

    Raises:
        RunError: If what stands there is no key.
        LedgerError: If what stands there is no signing key.

    Example:
        >>> import tempfile
        >>> home = Path(tempfile.mkdtemp())
        >>> guardian_keys(home).card == guardian_keys(home).card
        True
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    path = folder / "sealing.key"
    kept = kept_secret(path, lambda: X25519PrivateKey.generate().private_bytes_raw())
    try:
        sealing = X25519PrivateKey.from_private_bytes(kept)
    except ValueError as error:
        raise RunError(f"{path} holds no sealing key ({error}); restore it from a copy or move it away") from None
    return GuardianKeys(sealing=sealing, signing=signing_key(folder / "signing.key"))
