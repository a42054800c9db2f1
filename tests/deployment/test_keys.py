"""Keys of a federation: the certificate is the authority's and names the hosts; secrets are readable by their owner."""

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
    with pytest.raises(BadInput, match="is there already"):
        keys.make_server(tmp_path, ["other"])


def test_the_keys_of_a_node(tmp_path, capsys):
    assert main(["keys", str(tmp_path), "--node", "ann", "--node", "bob"]) == 0
    assert stat.S_IMODE((tmp_path / "ann").stat().st_mode) == 0o600
    assert (tmp_path / "bob.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "ann.pub").read_text() != (tmp_path / "bob.pub").read_text()
    assert main(["keys", str(tmp_path), "--node", "ann"]) == 2
    assert main(["keys", str(tmp_path)]) == 2
    assert "a node keeps its key" in capsys.readouterr().err
