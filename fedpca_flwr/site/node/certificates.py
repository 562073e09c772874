"""A certificate authority, the SuperLink's certificate and the sites' keys for Flower, made without other programs.

They serve rehearsals, and federations without a public-key infrastructure. Whoever has ``ca.key`` can stand in for the
SuperLink towards every site: the file belongs where the certificates are made, and nowhere else.
"""

import ipaddress
import re
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state.files import SHARED, atomic_file, write_new

HOST_NAME = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
)

MAX_DAYS = 36500  # a hundred years
AUTHORITY_DAYS = 3650
ISSUER = "federated PCA authority"


def make_certificates(folder: Path, hosts: list[str], days: int = 365, *, authority: Path | None = None) -> None:
    """Write an authority (ca.crt, ca.key) and a SuperLink's certificate (server.pem, server.key) for its hosts.

    Only their owner may read the private keys. The certificates are valid from an hour ago, since the clocks of sites
    differ. The authority is valid for ten years: sites keep its certificate when the SuperLink's is renewed. Its key is
    written to the folder ``authority``, by default to ``folder``. Raise ConfigError if the days or a host are not
    possible, or a file exists already.
    """
    names = _host_names(hosts, days)
    key, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = (
        _certificate(ISSUER, key, max(days, AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    leaf = _server_certificate(names, hosts[0], server, key, days)
    write_new((authority or folder) / "ca.key", _private_pem(key, PrivateFormat.PKCS8))
    write_new(folder / "ca.crt", root.public_bytes(Encoding.PEM), SHARED)
    write_new(folder / "server.key", _private_pem(server, PrivateFormat.TraditionalOpenSSL))
    write_new(folder / "server.pem", leaf.public_bytes(Encoding.PEM), SHARED)


def renew_certificate(folder: Path, hosts: list[str], days: int = 365, *, authority: Path | None = None) -> None:
    """Replace the SuperLink's certificate and key by new ones of the same authority, which the sites trust already.

    Raise ConfigError if the days or a host are not possible, or the authority's files (its key in the folder
    ``authority``, by default in ``folder``) are missing, no keys, or of two authorities.
    """
    names = _host_names(hosts, days)
    key_file, root_file = (authority or folder) / "ca.key", folder / "ca.crt"
    try:
        key = load_pem_private_key(key_file.read_bytes(), None)
        root = x509.load_pem_x509_certificate(root_file.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"the authority cannot be read ({type(error).__name__}): expected its key in {key_file} and its "
            f"certificate in {root_file}, as 'site certificates' wrote them"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != root.public_key():
        raise ConfigError(f"{key_file} is not the key of {root_file}: name the folder of its key with --authority")
    server = ec.generate_private_key(ec.SECP256R1())
    leaf = _server_certificate(names, hosts[0], server, key, days)
    with atomic_file(folder / "server.key") as stream:
        stream.write(_private_pem(server, PrivateFormat.TraditionalOpenSSL))
    with atomic_file(folder / "server.pem", SHARED) as stream:
        stream.write(leaf.public_bytes(Encoding.PEM))


def _host_names(hosts: list[str], days: int) -> list[x509.GeneralName]:
    """Return the hosts as names in a certificate; raise ConfigError for hosts or days that are not possible."""
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"days is {days}, expected 1 to {MAX_DAYS}")
    names = [_general_name(host) for host in hosts]
    wrong = [host for host, name in zip(hosts, names, strict=True) if name is None]
    if wrong or not hosts:
        text = ", ".join(map(repr, wrong)) or "none"
        raise ConfigError(
            f"host is {text}, expected host names in ASCII (xn--... for other characters) or addresses without a port"
        )
    return [name for name in names if name is not None]


def _server_certificate(
    names: list[x509.GeneralName],
    subject: str,
    server: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """Return a SuperLink's certificate, signed by an authority's key; its subject has at most 64 characters."""
    return (
        _certificate(subject[:64], server, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .sign(authority, hashes.SHA256())
    )


def make_node_key(path: Path) -> Path:
    """Write a SuperNode's key and, beside it, the public one (.pub), and return its path; ConfigError if one exists."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(path.name + ".pub")
    write_new(path, _private_pem(key, PrivateFormat.OpenSSH))
    write_new(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n", SHARED)
    return public


def _private_pem(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    """Return a private key as unencrypted PEM in the given format."""
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _general_name(text: str) -> x509.GeneralName | None:
    """Parse an IP address or a DNS name (also ``*.example.org``) for a certificate; None for other text."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text) if HOST_NAME.fullmatch(text) else None


def _key_usage(*allowed: str) -> x509.KeyUsage:
    """Return the X.509 extension that allows a key only the named uses, such as "digital_signature"."""
    return x509.KeyUsage(**{usage: usage in allowed for usage in signature(x509.KeyUsage).parameters})


def _certificate(subject: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    """Return a builder of an X.509 certificate of `ISSUER`, with public key and validity, not signed yet."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of sites differ
        .not_valid_after(now + timedelta(days=days))
    )
