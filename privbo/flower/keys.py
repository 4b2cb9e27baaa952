"""Certificates and node keys for a federation of one's own; `cryptography` does the work."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from privbo.flower.registry import require_names
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import write_atomically

# Files of a folder of keys, besides a ``SITE.key`` and a ``SITE.pub`` of every site; each private key belongs on one
# machine only.
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
_CURVE = ec.SECP384R1()  # a NIST curve, which Flower asks for


def make_keys(path: Path, *, sites: Sequence[str], hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Path:
    """Make an authority, a server certificate for ``hosts`` and one key pair per site; returns the folder.

    The authority's own private key is not kept: nothing else can be signed with it.

    Raises:
        ConfigurationError: If keys stand there already, or a name of a site or host can't be one.

    Example:
        >>> import tempfile
        >>> folder = make_keys(Path(tempfile.mkdtemp()) / "keys", sites=["north"])
        >>> sorted(path.name for path in folder.iterdir())
        ['ca.crt', 'north.key', 'north.pub', 'server.crt', 'server.key']
    """
    if (path / AUTHORITY).exists():
        raise ConfigurationError(f"{path} already holds keys; name a new folder")
    require_names([Path(KEY).stem, *sites])
    root, server = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    try:
        made = {AUTHORITY: _certificate(root, root, ()), CERTIFICATE: _certificate(server, root, hosts)}
    except ValueError as error:
        raise ConfigurationError(
            f"hosts={', '.join(hosts)[:200]!r}: {error}; write names in ASCII and addresses"
        ) from None
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    for file, certificate in made.items():
        write_atomically(path / file, certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(path / KEY, server, serialization.PrivateFormat.PKCS8)
    for site in sites:
        own = ec.generate_private_key(_CURVE)
        _write_private(path / f"{site}.key", own, serialization.PrivateFormat.OpenSSH)
        openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        write_atomically(path / f"{site}.pub", own.public_key().public_bytes(*openssh))
    return path


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    write_atomically(
        path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()), mode=0o600
    )


def _certificate(
    key: ec.EllipticCurvePrivateKey, root: ec.EllipticCurvePrivateKey, hosts: Sequence[str]
) -> x509.Certificate:
    """A certificate that the authority signs: a server's for its hosts, or its own."""
    now, issuer = dt.datetime.now(dt.UTC), "privbo federation"
    subject, authority = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]) for name in ((*hosts, issuer)[0], issuer)
    )
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=not hosts, path_length=None if hosts else 0), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), False),
    ]
    if hosts:
        extensions.append((x509.SubjectAlternativeName([_host(host) for host in hosts]), False))
    else:  # signs: a digital signature, certificates and lists of revoked ones, and nothing else
        extensions.append((x509.KeyUsage(True, False, False, False, False, True, True, False, False), True))
    builder = x509.CertificateBuilder(
        issuer_name=authority,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - dt.timedelta(minutes=5),
        not_valid_after=now + dt.timedelta(days=365),
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(root, hashes.SHA384())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
