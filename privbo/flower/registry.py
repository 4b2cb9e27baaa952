"""Registry of sites and their clients: public, written before the run, fixed for its length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from privbo.protocol.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Sites, their clients and their public keys.

    A site is one node of the network and hosts one or many clients (a hospital with its
    wards). With keys a node is the site whose key it proved to own; without keys it is
    whichever site it says, which is for trying out only.

    Attributes:
        n_clients: N, public.
        clients: The clients of every site; every client at exactly one site.
        keys: Public key of every site, as an OpenSSH line or PEM; empty for none.

    Raises:
        ConfigurationError: If a client has no site or two, or a key is missing or no key.

    Example:
        >>> Registry(n_clients=3, clients={"north": (0, 1), "south": (2,)}).sites
        ('north', 'south')
    """

    n_clients: int
    clients: Mapping[str, tuple[int, ...]]
    keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        placed = sorted(client for clients in self.clients.values() for client in clients)
        if placed != list(range(self.n_clients)):
            raise ConfigurationError(
                f"sites host clients {placed[:20]}, the run has 0..{self.n_clients - 1}; "
                "register every client at exactly one site"
            )
        if self.keys and set(self.keys) != set(self.clients):
            raise ConfigurationError(
                f"sites {sorted(set(self.clients) ^ set(self.keys))} have no public key or no clients; "
                "give every site a key, or none (for trying out only)"
            )
        if len(self._by_key) != len(self.keys):
            raise ConfigurationError("two sites have the same public key; make one key per site")

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, in order."""
        return tuple(self.clients)

    def key_of(self, site: str) -> bytes:
        """Give a site's key in the form in which keys are compared (DER)."""
        return canonical_key(self.keys[site].encode())

    def site_with(self, key: bytes) -> str | None:
        """Find the site that registered a key, or None."""
        try:
            return self._by_key.get(canonical_key(key))
        except ConfigurationError:
            return None

    @cached_property
    def _by_key(self) -> Mapping[bytes, str]:
        """Sites by their keys: every node is looked up in every round, and reading a key takes its time."""
        return {self.key_of(site): site for site in self.keys}


def canonical_key(key: bytes) -> bytes:
    """Convert a public key, given as an OpenSSH line or PEM, to DER.

    Raises:
        ConfigurationError: If the key is neither.
    """
    try:
        if key.lstrip().startswith(b"-----"):
            loaded = serialization.load_pem_public_key(key)
        else:
            return serialization.load_ssh_public_key(key).public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"public key {key[:40]!r} is neither an OpenSSH line nor PEM; copy the site's .pub file"
        ) from None
    return loaded.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def parse_clients(text: str) -> tuple[int, ...]:
    """Read client numbers from a text such as ``"0-9, 12"``.

    Raises:
        ConfigurationError: If the text is anything else than numbers and ranges.

    Example:
        >>> parse_clients("0-2, 7")
        (0, 1, 2, 7)
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigurationError(f"clients={text!r}: write numbers and ranges such as '0-9, 12'")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
