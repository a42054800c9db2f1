"""Stages by Ray: several per GPU on this host, and on a cluster of two nodes, one of which is lost."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_project
from servers import ROOT, alive, until

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling.dvc_graph import stale_stages

ray = pytest.importorskip("ray", reason="needs Ray in an environment of its own: make ray")
pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reporting: str) -> Path:
    """The toy project, which is the current folder."""
    folder = tmp_path / "writer"
    folder.mkdir()
    toy_project.make(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    return folder


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts a cluster at an address. The arguments are the cores and GPUs of its first node."""
    from ray.cluster_utils import Cluster

    clusters: list[Any] = []

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # which nodes may have

    def start(**resources: int) -> Any:
        clusters.append(Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **resources}))
        monkeypatch.setenv("RAY_ADDRESS", clusters[0].address)
        return clusters[0]

    yield start
    for cluster in clusters:
        cluster.shutdown()


def flow(**settings: Any) -> str:
    """The flow `reproduce` by Ray."""
    from fedweave.pipelines.scheduling.flows import reproduce

    return reproduce(where="ray", **settings)


def test_several_stages_share_a_gpu_of_this_host(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage uses half of the one GPU. Stages without training run on this host."""
    monkeypatch.setenv("FEDWEAVE_GPUS", "5")
    assert flow(parallel=2, retries=0, share=0.5) == "4 stages brought up to date"
    gpus = dict(toy_project.seen())
    assert gpus["made-a.txt"] == gpus["made-b.txt"] == "5"
    assert stale_stages() == []


def test_a_stage_whose_node_is_lost_runs_on_another(project: Path, head: Callable[..., Any]) -> None:
    """Two nodes train at the same time, with a whole GPU each. One is killed, and the other node returns its work."""
    cluster = head(num_cpus=1, num_gpus=1)
    second = cluster.add_node(num_cpus=1, num_gpus=1)
    (project / "hold").touch()
    lost: list[bool] = []

    def held() -> int:
        return sum(alive(int(path.name)) for path in (project / "pids").iterdir())

    def lose() -> None:
        lost.append(until(lambda: held() == 3, 120))  # training twice, and `aside`
        cluster.remove_node(second, allow_graceful=False)
        lost.append(until(lambda: held() == 2, 120))  # before it may end: its process outlives its node for a moment
        (project / "hold").unlink()

    watcher = threading.Thread(target=lose)
    watcher.start()
    assert flow(retries=2) == "4 stages brought up to date"
    watcher.join()
    assert lost == [True, True]
    assert stale_stages() == []
    starts = [name for name, gpu in toy_project.seen(project) if gpu == "0"]
    assert sorted({*starts}) == ["made-a.txt", "made-b.txt"]
    assert len(starts) == 3


def test_a_node_with_a_clone_returns_files_through_the_remote(
    project: Path, head: Callable[..., Any], tmp_path: Path
) -> None:
    """Like a host that does not share the writer's folder. Its own folder is in its environment."""
    clone = tmp_path / "clone"
    clone.mkdir()
    toy_project.make(clone)
    for folder in (project, clone):
        config = f"[core]\n    remote = shared\n['remote \"shared\"']\n    url = {tmp_path / 'remote'}\n"
        (folder / ".dvc" / "config.local").write_text(config)
    head(num_cpus=1).add_node(num_cpus=2, num_gpus=2, env_vars={"FEDWEAVE_PROJECT": str(clone)})
    assert flow(retries=0) == "4 stages brought up to date"
    assert stale_stages() == []
    assert {name for name, _ in toy_project.seen(clone)} == {"made-a.txt", "made-b.txt"}
    assert {name for name, _ in toy_project.seen(project)} == {"joined.txt", "aside.txt"}


def test_an_address_without_ray_is_refused_in_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(BadInput, match=r"RAY_ADDRESS: no Ray answers at 127\.0\.0\.1:1.*ray start --head"):
        flow()
