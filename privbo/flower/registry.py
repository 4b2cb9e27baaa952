"""The federation's two public files: which clients live where, and the run.

``run.toml`` is an ordinary configuration; its problem may leave the objective out, because
objectives live at the sites. ``federation.toml`` stands next to it, is written before the run, and is fixed for its
length::

    round_timeout = 300.0          # seconds; also start_timeout, min_sites

    [sites.north]
    clients = "0-9"
    public_key = "ecdsa-sha2-nistp384 AAAA..."   # every site's, or none's for trying out

    [guardians.ministry]           # with privacy.trust = "guardians": what `privbo flower guardian` prints
    sealing = "64 hexadecimal digits"
    signing = "64 hexadecimal digits"
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from pydantic import Field

from privbo.guardians.ciphertexts import Card
from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import Count, Positive, read_settings, settings
from privbo.runs.spec import Spec, parse_toml, read_bytes

RUN_FILE = "run.toml"
FEDERATION_FILE = "federation.toml"
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_DIGITS = 7  # of a client's number


def require_names(names: Sequence[str]) -> None:
    """Refuse names of sites or guardians that are no bare keys of TOML, which are plain in paths and certificates, too.

    Raises:
        ConfigurationError: Naming those, or all where one stands there twice.
    """
    odd = [name for name in names if not _NAME.fullmatch(name)]
    if odd or len(set(names)) < len(names):
        raise ConfigurationError(
            f"names={', '.join(odd or names)[:200]!r}: write 1 to 64 of the letters A to Z, digits, - and _, each once"
        )


def canonical_key(key: bytes) -> bytes:
    """Convert a public key, given as an OpenSSH line or PEM, to DER.

    Raises:
        ConfigurationError: If the key is neither.
    """
    is_pem = key.lstrip().startswith(b"-----")
    try:
        loaded = serialization.load_pem_public_key(key) if is_pem else serialization.load_ssh_public_key(key)
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
        is_bad = not first.isdecimal() or (dash and not last.isdecimal())
        if is_bad or max(len(first), len(last)) > _DIGITS or len(found) > 10**_DIGITS:
            raise ConfigurationError(f"clients={text[:80]!r}: write small numbers and ranges such as '0-9, 12'")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


@settings(table="sites")
class SiteEntry:
    """One ``[sites.NAME]`` table."""

    clients: str
    public_key: str | None = None


@settings(table="federation")
class Federation:
    """``federation.toml``: sites, their clients and their public keys, guardians, and waiting times.

    A site is one node of the network and hosts one or many clients (a hospital with its wards).

    Attributes:
        sites: The clients of every site, and its public key as an OpenSSH line or PEM.
        round_timeout: Seconds from asking to the end of a round; also the messages' time to live.
        start_timeout: Seconds to wait for nodes before the first round, and later while fewer
            than ``min_sites`` are connected.
        min_sites: Sites that must be ready before a run is made, and connected for a round to be played.
        guardians: Public keys of every guardian, in the order of shares.

    Raises:
        ConfigurationError: If a time is not a finite number of seconds above 0 or ``min_sites`` is below 1.
    """

    sites: Annotated[dict[str, SiteEntry], Field(min_length=1)]
    round_timeout: Positive = 300.0
    start_timeout: Positive = 300.0
    min_sites: Count = 1
    guardians: dict[str, Card] = field(default_factory=dict)

    def checked(self, n_clients: int) -> Federation:
        """Give the federation once every one of a run's clients is at exactly one site, and keys fit.

        Raises:
            ConfigurationError: If a client has no site or two, or a key is missing or no key.

        Example:
            >>> sites = {"north": SiteEntry(clients="0-1"), "south": SiteEntry(clients="2")}
            >>> Federation(sites=sites).checked(3).clients
            {'north': (0, 1), 'south': (2,)}
        """
        require_names(list(self.sites))
        require_names(list(self.guardians))
        if self.min_sites > len(self.sites):
            raise ConfigurationError(f"min_sites={self.min_sites} of {len(self.sites)} sites; lower it")
        placed = sorted(client for clients in self.clients.values() for client in clients)
        if len(placed) != n_clients or placed != list(range(n_clients)):
            raise ConfigurationError(
                f"sites host clients {placed[:20]}, the run has 0..{n_clients - 1}; "
                "register every client at exactly one site"
            )
        keyless = sorted(name for name, site in self.sites.items() if site.public_key is None)
        if keyless and self.has_keys:
            raise ConfigurationError(
                f"sites {keyless} have no public key; give every site a key, or none (for trying out only)"
            )
        cards = [key for card in self.guardians.values() for key in (card.sealing, card.signing)]
        if (self.has_keys and len(self._by_key) != len(self.sites)) or len(set(cards)) != len(cards):
            raise ConfigurationError("two sites or guardians have the same public key; each makes its own")
        return self

    @cached_property
    def clients(self) -> Mapping[str, tuple[int, ...]]:
        """The clients of every site."""
        return {name: parse_clients(site.clients) for name, site in self.sites.items()}

    @property
    def has_keys(self) -> bool:
        """Whether a node is the site whose key it proved to own; else it is whichever site it says, for trying out."""
        return any(site.public_key is not None for site in self.sites.values())

    def site_with(self, key: bytes) -> str | None:
        """Find the site that registered a key, or None."""
        try:
            return self._by_key.get(canonical_key(key))
        except ConfigurationError:
            return None

    def key_digests(self) -> dict[int, str]:
        """Digest of the public key of every client's site; empty words where sites have no keys."""
        digests = {site: hashlib.sha256(key).hexdigest() for key, site in self._by_key.items()}
        return {client: digests.get(site, "") for site, clients in self.clients.items() for client in clients}

    @cached_property
    def _by_key(self) -> Mapping[bytes, str]:
        """Sites by their keys: every node is looked up in every round, and reading a key takes its time."""
        keys = {name: site.public_key for name, site in self.sites.items() if site.public_key is not None}
        return {canonical_key(key.encode()): site for site, key in keys.items()}

    def on_grid(self, spec: Spec) -> Federation:
        """The federation with a run's waiting times: on a grid a round's answers are there before it ends."""
        if spec.times is None:
            return self
        return replace(self, round_timeout=min(self.round_timeout, spec.times.patience))


def read_federation(home: Path) -> Federation:
    """The federation that stands in an app's folder.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    return federation_of(read_bytes(home / FEDERATION_FILE))


@lru_cache(maxsize=4)
def federation_of(content: bytes) -> Federation:
    """Read the content of a ``federation.toml``, once for all sites that one process plays."""
    return read_settings(Federation, parse_toml(content, FEDERATION_FILE), FEDERATION_FILE)


def require_guardians(federation: Federation, privacy: Privacy | NoPrivacy) -> None:
    """Refuse guardians whose number is not that of the run's noises; none are needed where the server is trusted.

    Raises:
        ConfigurationError: If federation.toml names another number of guardians than the run, or the server would
            see the sums of sites whose records are hidden.
    """
    if privacy.unit == "record" and privacy.trust != "sites":
        raise ConfigurationError(
            f"privacy.unit='record', trust={privacy.trust!r}: over Flower every site adds its own noise; write "
            "trust='sites', with MultiTask()"
        )
    wanted = privacy.n_noises if privacy.trust == "guardians" else 0
    if len(federation.guardians) != wanted:
        raise ConfigurationError(
            f"{FEDERATION_FILE} names {len(federation.guardians)} guardians, run.toml has trust={privacy.trust!r} with "
            f"{wanted}; write a [guardians.NAME] table for each, or change privacy.trust"
        )


def require_hidden(spec: Spec, federation: Federation) -> None:
    """Refuse to ask sampled clients alone where that would show the sample to those it has to be hidden from.

    Raises:
        ConfigurationError: Naming what is missing.
    """
    if spec.privacy.channel != "anonymous":
        return
    missing = None
    if not federation.has_keys:
        missing = "nodes without keys can't be asked one by one; give every site a public_key"
    elif any(len(clients) > 1 for clients in federation.clients.values()):
        missing = "clients of one site see whether it is asked, and act by it; give every client a site of its own"
    elif spec.times is None:
        missing = "how long a round lasts would show who is asked; declare a grid ([times] in run.toml)"
    elif spec.privacy.sampling != "poisson":
        missing = "a client that is not asked does not act, which is priced for coins alone; use sampling='poisson'"
    if missing is not None:
        raise ConfigurationError(f"privacy.channel='anonymous': {missing}, or use channel='open'")


def public_spec(home: Path) -> Spec:
    """Read the run of a federation as its server knows it: the objective lives at the sites.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    return spec_of(home, read_bytes(home / RUN_FILE))


@lru_cache(maxsize=4)
def named_spec(content: bytes) -> Spec:
    """Read the run in the content of a ``run.toml``, once for all sites that one process plays; imports no code.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    table = parse_toml(content, RUN_FILE)
    stated = table.get("problem")
    if isinstance(stated, dict) and "factory" in stated and not {"n_clients", "space"} <= set(stated):
        raise ConfigurationError(
            f"problem: {RUN_FILE} of a federation must state n_clients and space next to "
            f"factory={stated['factory']!r}, so that no party imports code to learn them; add both"
        )
    return Spec.from_dict(table)


def spec_of(home: Path, content: bytes) -> Spec:
    """Read the run in the content of a ``run.toml``, and load its algorithm, whose module may stand next to it.

    Args:
        home: Folder of the app.
        content: Of the file.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    here = str(home.absolute())
    if here not in sys.path:
        sys.path.insert(0, here)
    return named_spec(content).with_algorithm()
