"""A bad tensor of one node is refused, and the federation continues."""

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedweave.deployment.wire.tensors import UndeclaredTensor, decode

PYTHON = Path(__file__).resolve().parents[2] / ".flower" / "bin" / "python"


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_file(text: str) -> bytes:
    """A .npy file with this header and eight bytes."""
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + bytes(8)


NPY_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
BAD = {
    "empty": b"",
    "zip": b"PK\x03\x04aaaa",
    "huge": npy_file(NPY_HEADER % "(10**14,)"),
    "long": npy_file(NPY_HEADER % "(100000000000000,)"),
    "overflow": npy_file(NPY_HEADER % "(99999999999999999999,)"),
    "header": npy_file("{'descr': '<f4', 'fortran_order': ("),
    "shape": npy(np.zeros((3, 2), np.float32)),
    "type": npy(np.zeros((2, 3))),
    "order": npy(np.zeros((2, 3), ">f4")),
    "cut": npy(np.zeros((2, 3), np.float32))[:-1],
    "object": npy_file("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}"),
    "deep": npy_file("(" * 5000),
}


@pytest.mark.parametrize("case", BAD)
def test_an_array_that_differs_from_its_declaration_is_refused(case):
    with pytest.raises(UndeclaredTensor, match="upload: 'w' ") as refused:
        decode(BAD[case], [2, 3], "float32", "w")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(True), np.zeros((0, 4)), np.asfortranarray(np.eye(3))],
)
def test_the_declared_array_keeps_its_bits(array):
    read = decode(npy(array), [*array.shape], str(array.dtype), "w")
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


SCRIPT = """
import json, sys
from types import SimpleNamespace as Some
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from fedweave.deployment.flower import channel, secure
from fedweave.deployment.wire.messages import Request

request = Request("train", {"round": 0}, form={"w": [[2, 3], "float32"]}, max_bytes=10**5)
exchange = secure._CountingGrid(None, {1: request}, [(2, 3)])
for name, data in json.load(sys.stdin).items():
    data = bytes.fromhex(data)
    array = Array("float32", (2, 3), "numpy.ndarray", data)
    content = RecordDict({"config": ConfigRecord({"client": 1}), "upload": ArrayRecord({"w": array})})
    plain = channel._read_reply(Some(content=content), 10, request)
    parts = ConfigRecord({Key.MASKED_PARAMETERS: [data, data]})
    exchange.bytes[1] = 0, 0
    masked = exchange._refusal(1, Some(content=RecordDict({RECORD_KEY_CONFIGS: parts})))
    print(json.dumps([name, plain if isinstance(plain, str) else "", masked]))
"""


@pytest.mark.skipif(not PYTHON.is_file(), reason="needs the environment of make flower")
def test_a_bad_reply_over_flower_gives_one_line_for_that_node():
    good = {"good": npy(np.ones((2, 3), np.float32))}
    text = json.dumps({name: data.hex() for name, data in {**BAD, **good}.items()})
    done = subprocess.run([PYTHON, "-c", SCRIPT], input=text, capture_output=True, text=True, check=True)
    answers = {name: answer for name, *answer in map(json.loads, done.stdout.splitlines())}
    assert {*answers} == {*BAD, "good"}
    assert all("a reply that cannot be read" in part for name in BAD for part in answers[name])
    assert answers["good"][0] == ""
    assert "int64 is declared" in answers["good"][1]
