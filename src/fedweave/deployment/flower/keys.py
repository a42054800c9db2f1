"""Keys of a federation: a certificate authority, the server's certificate, and a key pair of each node."""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedweave.errors import BadInput, format_value
from fedweave.files.atomic import write_atomic

YEARS = 2  # for which a certificate is valid
LOOPBACK = ("127.0.0.1", "localhost")  # the SuperLink's own programs reach it there
AUTHORITY, SERVER, SERVER_KEY = "ca.crt", "server.crt", "server.key"
MODE = 0o600  # of secrets: their owner alone reads them
HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
MAX_HOST_LENGTH = 253  # characters of a host's name
PEM, NO_PASSWORD = serialization.Encoding.PEM, serialization.NoEncryption()


def check_hosts(hosts: Sequence[str]) -> None:
    """Refuse what is neither a name nor an address of a host."""
    for host in hosts:
        is_name = HOST.fullmatch(host) and len(host) <= MAX_HOST_LENGTH and not host.rsplit(".", 1)[-1].isdigit()
        if not is_name and not isinstance(_general_name(host), x509.IPAddress):
            remedy = "give a name or an address alone, such as fl.example.org or 10.0.0.7"
            raise BadInput("--host", f"{format_value(host)} is not a name of a host; {remedy}")


def check_names(folder: Path, names: Sequence[str]) -> None:
    """Refuse names of nodes whose keys would lie outside of `folder` or in place of other files."""
    for name in names:
        if not NODE.fullmatch(name) or name.endswith(".pub") or name in (AUTHORITY, SERVER, SERVER_KEY):
            remedy = "use letters, digits, - and _, and dots inside, such as hospital-1"
            raise BadInput("--node", f"{format_value(name)} is not a name of a node's key; {remedy}")
        if (folder / name).exists() and (folder / f"{name}.pub").exists():
            raise BadInput(f"{folder / name}", "already exists; a node keeps its key, so take another name")
    if len({*names}) < len(names):
        raise BadInput(f"--node: {', '.join(names)}", "one name occurs twice; name each node once")


def make_server(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.crt, which every node gets, and server.crt and server.key for the names and addresses `hosts`.

    The certificate also names loopback. The key of the authority is not stored: new certificates come from a new
    authority.

    Args:
        hosts: one or more, which `check_hosts` has accepted.
    """
    if (folder / SERVER).exists():
        raise BadInput(f"{folder / SERVER}", "already exists; nodes know it, so take another folder for new keys")
    root, leaf, key = _certificates(hosts)
    write_atomic(folder / AUTHORITY, root.public_bytes(PEM))
    write_atomic(folder / SERVER_KEY, key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_PASSWORD), MODE)
    write_atomic(folder / SERVER, leaf.public_bytes(PEM))


def _certificates(hosts: Sequence[str]) -> tuple[x509.Certificate, x509.Certificate, ec.EllipticCurvePrivateKey]:
    """(certificate of a new authority, certificate of the server, key of the server)."""
    authority, key = _generate_key(), _generate_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedweave federation")])
    root = _builder(name, name, authority).add_extension(x509.BasicConstraints(True, 0), True)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    leaf = _builder(subject, name, key).add_extension(x509.BasicConstraints(False, None), True)
    names = dict.fromkeys([*hosts, *LOOPBACK])
    leaf = leaf.add_extension(x509.SubjectAlternativeName([*map(_general_name, names)]), False)
    return root.sign(authority, hashes.SHA384()), leaf.sign(authority, hashes.SHA384()), key


def make_node(folder: Path, name: str) -> Path:
    """Write NAME, the secret key of a node, and NAME.pub, which the server's owner registers; returns NAME.

    If only NAME is there, NAME.pub is made again from it.

    Raises:
        BadInput: a wrong name, or one whose key already exists.
    """
    check_names(folder, [name])
    path = folder / name
    if path.exists():
        key = _read_key(path)
    else:
        key = _generate_key()
        write_atomic(path, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, NO_PASSWORD), MODE)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomic(folder / f"{name}.pub", public + b"\n")
    return path


def check_files_of_node(key: Path, certificate: Path) -> None:
    """Refuse what is not a secret key of a node, such as NAME.pub, or no certificate; Flower would try them forever."""
    try:
        secret: object = serialization.load_ssh_private_key(key.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        secret = None
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise BadInput(
            f"--key: {key}", "no secret key of a node; give the file that `keys` wrote as NAME, not NAME.pub"
        )
    try:
        x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError as error:
        raise BadInput(
            f"--certificate: {certificate}", f"no certificate; give the {AUTHORITY} that the server's owner sent"
        ) from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(path, f"no secret key of a node ({error}); move it away, or take another name") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(path, "no key of the kind that `keys` makes; move it away, or take another name")
    return key


def _generate_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
        now + datetime.timedelta(days=365 * YEARS)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host if host.isascii() else "")
