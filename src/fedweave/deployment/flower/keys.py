"""Keys of a federation: a certificate authority, the server's certificate, and a key pair of each node."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedweave.errors import BadInput
from fedweave.files import write_atomic

YEARS = 2
LOOPBACK = ("127.0.0.1", "localhost")  # by which the SuperLink's own programs reach it
AUTHORITY, SERVER, SECRET = "ca.crt", "server.crt", "server.key"
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def make_server(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.crt, which every node gets, and server.crt and server.key for the names and addresses `hosts`.

    The certificate also names loopback.

    The key of the authority is not kept: new certificates come from a new authority.

    Raises:
        BadInput: there are keys already, or no host is named.
    """
    if not hosts:
        raise BadInput("hosts: none; name those by which nodes reach the server, such as fl.example.org")
    if (folder / SERVER).exists():
        raise BadInput(f"{folder / SERVER}: is there already; nodes know it, so take another folder for new keys")
    authority, key = _new(), _new()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedweave federation")])
    root = _builder(name, name, authority).add_extension(x509.BasicConstraints(True, 0), True)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    leaf = _builder(own, name, key).add_extension(x509.BasicConstraints(False, None), True)
    names = dict.fromkeys([*hosts, *LOOPBACK])
    leaf = leaf.add_extension(x509.SubjectAlternativeName([*map(_named, names)]), False)
    signed = [builder.sign(authority, hashes.SHA384()) for builder in (root, leaf)]
    write_atomic(folder / AUTHORITY, signed[0].public_bytes(PEM))
    _secret(folder / SECRET, key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
    write_atomic(folder / SERVER, signed[1].public_bytes(PEM))


def make_node(folder: Path, name: str) -> Path:
    """Write NAME, the secret key of a node, and NAME.pub, which the server's owner registers; returns NAME.

    Raises:
        BadInput: there is a key of this name already.
    """
    path = folder / name
    if path.exists():
        raise BadInput(f"{path}: is there already; a node keeps its key, so take another name")
    key = _new()
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _secret(path, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    write_atomic(folder / f"{name}.pub", public + b"\n")
    return path


def _new() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _secret(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    write_atomic(path, content)
    path.chmod(0o600)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
        now + datetime.timedelta(days=365 * YEARS)
    )


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
