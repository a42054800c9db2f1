"""Bad files and folders: one line names the error. Unusual but valid input works."""

import atexit
import copy
import os
import resource
import signal
import sys
import tarfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedweave import data
from fedweave.data.base import Partition
from fedweave.data.sources.transfer import SourceError, extract
from fedweave.engine.records import Report
from fedweave.errors import Diverged
from fedweave.files.atomic import check_writable, load_tensors, save_tensors, write_atomic
from fedweave.pipelines.commands import main, single_run
from fedweave.pipelines.commands.params_file import dump
from fedweave.pipelines.processes import run_main
from fedweave.pipelines.stages import evaluate
from fedweave.runs import archive, repetition
from fedweave.runs import checkpoints as checkpoint_files
from fedweave.study import spec
from tests.data.test_bad_data import SETS, assert_refused, rows
from tests.study.test_spec import good

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"arrays": 3}', '{"arrays": {}}', '{"arrays": {"x": 1}, "kind": "images"}', "\x00"]
)
def test_a_folder_with_an_invalid_meta_file_is_refused(content: str, tmp_path: Path) -> None:
    data.save_dataset(tmp_path, SETS["digits"])
    (tmp_path / "meta.json").write_text(content)
    assert_refused(lambda: data.load_dataset(tmp_path), str(tmp_path), "run the download stage")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"clip": 1e6, "noise": 1e6}, "lr": 0.01}, ["train.privacy.noise (1000000.0)", "1e+12 is added"]),
        ({"lr": 1000.0, "momentum": 1.0, "epochs": 9, "rounds": 9}, ["lower train.lr (1000.0)"]),
    ],
)
def test_a_diverged_run_names_the_setting_to_change(changes: dict[str, Any], words: list[str]) -> None:
    """Noise larger than the model is not a fault of the step size."""
    with pytest.raises(Diverged) as caught:
        repetition.run_repetition(prepared(SMALL, **changes), 0)
    assert [word for word in words if word not in str(caught.value)] == []


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    """This holds for arrays, partitions and checkpoints."""
    data.save_dataset(tmp_path, SETS["digits"])
    np.save(tmp_path / "y.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert_refused(lambda: data.load_dataset(tmp_path), "y.npy", "run the download stage")
    np.savez(tmp_path / "p.npz", train=np.array([{"a": 1}], dtype=object))
    assert_refused(lambda: data.load_partition(tmp_path / "p.npz"), "p.npz", "run the partition stage")


def test_links_of_an_archive_are_not_followed(tmp_path: Path) -> None:
    """Nor is anything left of a truncated archive; `test_download` has paths that leave the folder."""
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "secret", "inside")
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        tar.addfile(link)
    with pytest.raises(SourceError, match="link"):
        extract(tmp_path / "a.tar.gz", {"link": tmp_path / "link"})
    whole = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match="cannot read inside"):
        extract(tmp_path / "a.tar.gz", {"inside": tmp_path / "again"})
    assert not (tmp_path / "again").exists()


def in_child(act: Callable[[], None]) -> str:
    """The error of `act` in a child process, which may give up rights and limits."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            message = "nothing"
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writer, message.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    return os.read(reader, 10_000).decode()


def exit_code(command: Callable[[], None]) -> int:
    """The exit code of `command` in a child process."""
    child = os.fork()
    if child == 0:
        atexit._clear()  # the child must not run the exit handlers of the tests
        code: object = "no exit"
        try:
            command()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("content", ["text", "tensors"])
def test_a_full_disk_leaves_the_old_file(content: str, tmp_path: Path) -> None:
    """The line names the file and the reason. The old file is unchanged, and there is no partial file."""
    (tmp_path / "file.pt").write_bytes(b"old")

    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        if content == "text":
            write_atomic(tmp_path / "file.pt", b"x" * 100_000)
        else:
            save_tensors(tmp_path / "file.pt", {"a": torch.zeros(100_000)})

    message = in_child(act)
    assert message.startswith(f"BadInput: {tmp_path / 'file.pt'}: cannot be written (File too large); free space")
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]
    assert (tmp_path / "file.pt").read_bytes() == b"old"


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    """The check comes before training, for a user without write permission."""
    tmp_path.chmod(0o555)

    def act() -> None:
        if os.geteuid() == 0:
            os.setegid(65534)
            os.seteuid(65534)
        check_writable(tmp_path / "results")

    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    message = in_child(act)
    tmp_path.chmod(0o755)
    assert message.startswith("BadInput: ")
    assert "cannot be written (Permission denied)" in message
    assert f"make {tmp_path / 'results'} a folder that can be written" in message


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    assert_refused(lambda: check_writable(tmp_path / "results" / "x"), "results", "cannot be written (Not a directory)")


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("results", lambda: run_main(evaluate.main)),
        ("data", lambda: main.run_command(lambda: single_run.run("local", rounds=1))),
    ],
)
def test_a_file_in_place_of_a_folder_of_the_project_is_refused(
    place: str,
    command: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every command that needs the folder ends with one line and exit code 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["command"])
    (tmp_path / "params.yaml").write_text(dump(good()))
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    (tmp_path / place).write_text("")
    code, output = exit_code(command), capfd.readouterr().err
    assert code == 2, output
    assert output.startswith(f"error: {place}/")
    assert "Not a directory" in output
    assert output.count("\n") == 1


def prepared(partition: Partition, task: str = "digits", **train: Any) -> repetition.PreparedRun:
    """Two rounds of FedAvg-FT on the given clients."""
    content = copy.deepcopy(good())
    content["tasks"][task]["train"] |= {"rounds": 2, **train}
    content["runs"] = {"a": {"task": task, "method": "fedavg_ft"}}
    run = spec.parse(content).run("a")
    dataset = SETS["digits" if task == "digits" else "digits-graph"]
    return repetition.prepare(run, dataset, partition)


def single_class(count: int) -> list[int]:
    return np.flatnonzero(SETS["digits"].labels == 3)[:count].tolist()


SMALL = Partition(rows([0, 1], [2, 3, 4]), rows([5], [6]), rows([7], [8]))
UNUSUAL: list[tuple[str, Partition, dict[str, Any]]] = [
    ("one sample", Partition(rows([0], [3, 4, 5]), rows([1], [6]), rows([2], [7])), {}),
    ("one class", Partition(rows(single_class(9), [0, 1, 2]), rows([30], [31]), rows([40], [41])), {}),
    ("one client", Partition(rows([0, 1, 2, 3]), rows([4]), rows([5])), {}),
    ("batch larger than a client", SMALL, {"batch_size": 500}),
    ("whole training set as one batch", SMALL, {"batch_size": 0}),
]


@pytest.mark.parametrize(("partition", "train"), [odd[1:] for odd in UNUSUAL], ids=[odd[0] for odd in UNUSUAL])
def test_unusual_clients_work(partition: Partition, train: dict[str, Any]) -> None:
    """They train and have scores, and no client is dropped."""
    history = repetition.run_repetition(prepared(partition, **train), 0)
    assert np.isfinite(archive.select_scores(prepared(partition, **train), history)).all()
    assert history.dropped == []


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_isolated_nodes_and_disconnected_graphs_work(executor: str) -> None:
    """A client without edges, one with an isolated node, and one with two components."""
    path = np.array([[0, 1, 3, 4], [1, 0, 4, 3]], dtype=np.int64)
    none = np.zeros((2, 0), dtype=np.int64)
    parts = [rows([0, 3], [0, 3], [0, 3]), rows([1], [1], [1]), rows([2, 4], [2, 4], [2, 4])]
    nodes = rows(*(list(range(10 * i, 10 * i + 5)) for i in range(3)))
    partition = Partition(*parts, nodes=nodes, edges=(none, path, path[:, :2]))
    history = repetition.run_repetition(prepared(partition, "graph", executor=executor), 0)
    assert np.isfinite(history.scores["post/test"]).all()
    assert np.isfinite([row.train_loss for row in history.ledger]).all()


def test_checkpoints_of_other_runs_are_refused_and_damaged_ones_skipped(tmp_path: Path) -> None:
    """Other runs differ in specification, version or seed. In place of a damaged checkpoint the one before is used. Two
    checkpoints are kept, and one of a finished run.
    """
    prepared_run = prepared(SMALL, rounds=5, checkpoint=1)
    whole = repetition.run_repetition(prepared_run, 0)
    again = partial(repetition.run_repetition, prepared_run, 0, tmp_path)

    def until_the_last(report: Report) -> None:
        assert report.round < 5, "killed"

    with pytest.raises(AssertionError, match="killed"):
        repetition.run_repetition(prepared_run, 0, tmp_path, until_the_last)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rsplit("-", 1)[1] for name in files] == ["000000003.pt", "000000004.pt"]
    newest = tmp_path / files[1]
    content = torch.load(newest, weights_only=True)
    for key, value in (("version", 99), ("fingerprint", "other"), ("seed", 5)):
        save_tensors(newest, {**content, key: value})
        assert_refused(again, str(newest), str(value), "delete it")
    newest.write_bytes(newest.read_bytes()[:-100])
    assert again().scores == whole.scores
    (newest,) = tmp_path.iterdir()
    assert newest.name.endswith("-finished.pt")
    assert load_tensors(newest)["state"] == (5, {}, {}, {})
    finished = again()
    assert finished.scores == whole.scores
    for name, model in whole.snapshot["models"].items():
        assert torch.equal(finished.snapshot["models"][name], model)
    newest.write_bytes(b"")
    assert_refused(again, str(newest), "not a readable checkpoint", "delete it")
    checkpoint_files.remove(tmp_path, prepared_run.run)
    assert [*tmp_path.iterdir()] == []
