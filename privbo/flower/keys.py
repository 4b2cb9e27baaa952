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
    root = ec.generate_private_key(_CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "privbo federation")])
    authority = _certificate(name, name, root, root, x509.BasicConstraints(ca=True, path_length=0), hosts=())
    server = ec.generate_private_key(_CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    certificate = _certificate(
        subject, name, server, root, x509.BasicConstraints(ca=False, path_length=None), hosts=hosts
    )
    folder.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    folder.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
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
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    constraints: x509.BasicConstraints,
    *,
    hosts: Sequence[str],
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(constraints, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if constraints.ca:
        builder = builder.add_extension(_usage(signs=True), critical=True)
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA384())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
