"""Certificates and node keys for a federation of one's own; `cryptography` does the work."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from privbo.protocol.errors import ConfigurationError

_CURVE = ec.SECP384R1()  # a NIST curve, which Flower asks for
_AUTHORITY = "privbo federation"
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, kw_only=True)
class KeyFolder:
    """Folder with the keys of a federation; each private key belongs on one machine only.

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def authority(self) -> Path:
        """Certificate of the authority; every machine has it."""
        return self.path / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.path / "server.crt"

    @property
    def key(self) -> Path:
        """Private key of the server."""
        return self.path / "server.key"

    def site_key(self, site: str) -> Path:
        """Private key of a site."""
        return self.path / f"{site}.key"

    def site_public(self, site: str) -> Path:
        """Public key of a site; registered with the SuperLink and named in ``federation.toml``."""
        return self.path / f"{site}.pub"


def make_keys(path: Path, *, sites: Sequence[str], hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> KeyFolder:
    """Make an authority, a server certificate for ``hosts`` and one key pair per site.

    The authority's own private key is not kept: nothing else can be signed with it.

    Raises:
        ConfigurationError: If keys stand there already.

    Example:
        >>> import tempfile
        >>> folder = make_keys(Path(tempfile.mkdtemp()) / "keys", sites=["north"])
        >>> sorted(path.name for path in folder.path.iterdir())
        ['ca.crt', 'north.key', 'north.pub', 'server.crt', 'server.key']
    """
    folder = KeyFolder(path=path)
    if folder.authority.exists():
        raise ConfigurationError(f"{path} already holds keys; name a new folder")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    root, server = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    for file, certificate in (
        (folder.authority, _certificate(_AUTHORITY, root, root)),
        (folder.certificate, _certificate(hosts[0], server, root, hosts)),
    ):
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(folder.key, server, serialization.PrivateFormat.PKCS8)
    for site in sites:
        key = ec.generate_private_key(_CURVE)
        _write_private(folder.site_key(site), key, serialization.PrivateFormat.OpenSSH)
        folder.site_public(site).write_bytes(
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )
    return folder


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, hosts: Sequence[str] = ()
) -> x509.Certificate:
    """A certificate that the authority signs: a server's for its hosts, or its own."""
    now, is_authority = dt.datetime.now(dt.UTC), not hosts
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(_AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(constraints, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
    else:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA384())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
