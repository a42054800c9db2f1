"""Keys of a federation: the authority signs the certificate, which names the hosts. Only owners can read secrets."""

import ssl
import stat

import pytest

from fedweave.deployment.__main__ import main
from fedweave.errors import BadInput

x509 = pytest.importorskip("cryptography.x509")


def test_the_server_certificate(tmp_path):
    from fedweave.deployment.flower import keys

    keys.make_server(tmp_path, ["fl.example.org", "10.0.0.7"])
    root, leaf = (x509.load_pem_x509_certificate((tmp_path / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    with pytest.raises(BadInput, match="already exists"):
        keys.make_server(tmp_path, ["other"])


def test_the_keys_of_a_node(tmp_path, capsys):
    assert main(["keys", str(tmp_path), "--node", "ann", "--node", "bob"]) == 0
    assert stat.S_IMODE((tmp_path / "ann").stat().st_mode) == 0o600
    assert (tmp_path / "bob.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "ann.pub").read_text() != (tmp_path / "bob.pub").read_text()
    assert main(["keys", str(tmp_path), "--node", "ann"]) == 2
    assert main(["keys", str(tmp_path)]) == 2
    assert "a node keeps its key" in capsys.readouterr().err


@pytest.fixture
def start_node(tmp_path, monkeypatch, capsys):
    """Runs `node` in a folder with the keys of node ann and of a server. Returns the line of its error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedweave.deployment.node.node_options.check_data", lambda *arguments: None)
    assert main(["keys", ".", "--node", "ann", "--host", "fl.example.org"]) == 0
    capsys.readouterr()

    def start(key: str, certificate: str) -> str:
        good = "--superlink 127.0.0.1:1 --data client.pt --state state --spec 3f2a9c41d07be865"
        assert main(["node", *good.split(), "--key", key, "--certificate", certificate]) == 2
        assert not (tmp_path / "state").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return start


@pytest.mark.parametrize(
    ("key", "certificate", "words"),
    [
        (
            "ann.pub",
            "ca.crt",
            "ann.pub: no secret key of a node; give the file that `keys` wrote as NAME, not NAME.pub",
        ),
        ("server.key", "ca.crt", "server.key: no secret key of a node"),
        ("ann", "ann.pub", "--certificate: ann.pub: no certificate; give the ca.crt that"),
        ("ann", "server.key", "server.key: no certificate"),
    ],
)
def test_a_node_with_another_file_starts_nothing(key, certificate, words, start_node):
    """Otherwise Flower would restart again and again."""
    assert words in start_node(key, certificate)


def test_an_environment_without_flower_starts_nothing(start_node, monkeypatch):
    """One line names the environment with Flower. The project's own environment does not have it."""
    from fedweave.deployment.flower.node_keys import run_flwr

    monkeypatch.setattr("fedweave.deployment.flower.processes.find_spec", lambda name: None)
    line = "has no Flower, which has an environment of its own; in a checkout: make flower, and source"
    assert line in start_node("ann", "ca.crt")
    monkeypatch.setattr("fedweave.deployment.flower.node_keys.CODE", "raise ImportError(\"No module named 'flwr'\")")
    with pytest.raises(BadInput, match="has no Flower"):
        run_flwr([["supernode", "register", "ann.pub"]])


def test_a_lost_public_key_is_rebuilt(tmp_path, capsys):
    assert main(["keys", str(tmp_path), "--node", "ann"]) == 0
    secret, public = (tmp_path / "ann").read_bytes(), (tmp_path / "ann.pub").read_bytes()
    (tmp_path / "ann.pub").unlink()
    assert main(["keys", str(tmp_path), "--node", "ann"]) == 0
    assert (tmp_path / "ann.pub").read_bytes() == public
    assert (tmp_path / "ann").read_bytes() == secret
    (tmp_path / "ann.pub").unlink()
    (tmp_path / "ann").write_bytes(b"x")
    assert main(["keys", str(tmp_path), "--node", "ann"]) == 2
    assert "no secret key of a node" in capsys.readouterr().err


@pytest.mark.parametrize(
    "names",
    [
        ["--node", "../out"],
        ["--node", "a/b"],
        ["--node", ""],
        ["--node", ".."],
        ["--node", "a.pub"],
        ["--node", "server.key"],
        ["--node", "ann", "--node", "ann"],
        ["--host", "http://fl.example.org:8000"],
        ["--host", "fl é.org"],
        ["--host", ""],
        ["--host", "10.0.0.700"],
        ["--host", "fl.example.org", "--host", "a b"],
    ],
)
def test_invalid_names_write_nothing(names, tmp_path, capsys):
    """This includes the valid names in the same command."""
    assert main(["keys", str(tmp_path / "keys"), "--node", "good", *names]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {names[-2]}: ")
    assert not [*tmp_path.iterdir()]


def test_secrets_have_their_mode_before_they_have_content(tmp_path, monkeypatch):
    """A reader of the temporary file cannot read the content either."""
    from fedweave.deployment.node.client_data import ClientFile
    from fedweave.files import atomic

    modes, write, sync = {}, atomic.Path.write_bytes, atomic._sync

    def spy(path, content):
        modes[path.name] = stat.S_IMODE(path.stat().st_mode)
        return write(path, content)

    monkeypatch.setattr(atomic.Path, "write_bytes", spy)
    assert main(["keys", str(tmp_path), "--node", "ann", "--host", "a.org"]) == 0
    secret = [mode for name, mode in modes.items() if name.startswith((".ann.", ".server.key."))]
    assert secret.count(0o600) == 2
    monkeypatch.setattr(atomic, "_sync", lambda path: (modes.setdefault(path, path.stat().st_mode), sync(path)))
    modes.clear()
    ClientFile(0, {}, {}).save(tmp_path / "client.pt")
    assert stat.S_IMODE(next(iter(modes.values()))) == 0o600
    assert stat.S_IMODE((tmp_path / "client.pt").stat().st_mode) == 0o600
