"""Stages as jobs of submitit, here by its executor for one machine: from `submit` to the commit of `collect`."""

import os
import pickle
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import cluster_project
import psutil
import pytest
from servers import ROOT, alive, until

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import batches, collection, resources, slurm, submissions
from fedweave.pipelines.scheduling.dvc_graph import stale_stages
from fedweave.pipelines.scheduling.stage_jobs import StageJob, StageTask
from fedweave.pipelines.scheduling.submissions import Submission

acceptance = pytest.mark.acceptance
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Submission]]:
    """Submits the outdated stages of a project, which is the current folder. Its jobs end with the test."""
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    cluster_project.make(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    open_ones: list[Submission] = []

    def send() -> Submission:
        submission = submissions.submit(resources.load())
        assert submission is not None
        open_ones.append(submission)
        return submission

    yield send
    for submission in open_ones:
        with suppress(psutil.Error):
            slurm.cancel("local", [job.job for job in submission.jobs])


def ended(submission: Submission) -> bool:
    """Whether no job of the submission is active within a minute."""
    return until(lambda: not any(state.is_active for state in submission.states().values()))


def job_process(submission: Submission) -> psutil.Process:
    """The process that runs the tasks, a child of submitit's controller."""
    controller = psutil.Process(int(submission.jobs[0].job))
    assert until(lambda: bool(controller.children()))
    return controller.children()[0]


def test_jobs_run_without_dvc_and_are_committed_at_once(submit: Callable[[], Submission]) -> None:
    """A job is held in the middle, stopped and queued again. Other studies and submissions do not disturb it."""
    Path("knobs/hold-b").touch()
    submission = submit()
    assert {job.task.stage for job in submission.jobs} == {"make@a", "make@b", "last"}
    assert cluster_project.starts()[0] == "before"
    assert until(lambda: "b" in cluster_project.starts(), 120)
    with pytest.raises(
        BadInput, match=r"3 stages are submitted and not collected, 3 wait or run: .*cluster cancel toy"
    ):
        submit()
    mine = Path("params.yaml").read_text()
    Path("params.yaml").write_text("names: [c]\nsize: 2\nstudy: other\n")
    with pytest.raises(BadInput, match=r"'toy' is to be collected; switch first: fedweave study use toy"):
        collection.collect(submission)
    job_process(submission).send_signal(signal.SIGUSR2)
    assert until(lambda: cluster_project.starts().count("b") == 2, 120)
    Path("knobs/hold-b").unlink()
    assert ended(submission)
    Path("params.yaml").write_text(mine)
    assert {row.state for row in collection.progress(submission)} == {"finished"}
    done = collection.collect(submission)
    assert (sorted(done.committed), done.failed, done.active) == (["last", "make@a", "make@b"], [], [])
    assert stale_stages() == []
    assert sorted(cluster_project.starts()) == ["a", "b", "b", "before", "last"]
    assert Path("results/b.txt").read_text() == f"b{mine}"
    assert submissions.load("toy") is None


@acceptance
def test_failed_stages_are_reported_and_only_they_are_submitted_again(submit: Callable[[], Submission]) -> None:
    Path("knobs/refuse-a").touch()
    submission = submit()
    assert ended(submission)
    done = collection.collect(submission)
    assert done.committed == ["make@b"]
    assert any("make@a: error: asked to refuse" in line for line in done.failed)
    assert any(line.startswith("last:") and "results/a.txt is not there" in line for line in done.failed)
    Path("knobs/refuse-a").unlink()
    again = submit()
    assert {job.task.stage for job in again.jobs} == {"make@a", "last"}
    assert ended(again)
    assert sorted(collection.collect(again).committed) == ["last", "make@a"]
    assert stale_stages() == []


@acceptance
def test_a_cancelled_submission_keeps_finished_stages(submit: Callable[[], Submission]) -> None:
    Path("knobs/hold-b").touch()
    submission = submit()
    assert until(lambda: "b" in cluster_project.starts(), 120)
    job = job_process(submission)
    assert submission.cancel() == [job.task.stage for job in submission.jobs]
    assert until(lambda: not alive(job.pid))
    assert submission.cancel() == []
    before = {row.job.task.stage for row in collection.progress(submission) if row.state == "finished"}
    done = collection.collect(submission)
    assert set(done.committed) == before
    assert done.failed
    assert all("without an outcome (not in the queue); log: " in line for line in done.failed)


@acceptance
def test_outputs_of_other_inputs_are_not_accepted(submit: Callable[[], Submission]) -> None:
    """Refused where parameters, an input or the output have changed since the run. Restored ones are accepted."""
    submission = submit()
    assert ended(submission)
    changes = {
        "params.yaml": ("names: [a, b]\nsize: 2\nstudy: toy\n", "its command or its parameters in params.yaml changed"),
        "results/before.txt": ("x", "results/before.txt changed while it ran or after it"),
        "results/a.txt": ("x", "results/a.txt changed while it ran or after it"),
    }
    (task,) = [job.task for job in submission.jobs if job.task.stage == "make@a"]
    for name, (content, reason) in changes.items():
        file = Path(name)
        before = file.read_text()
        file.write_text(content)
        committed, (line,) = collection.commit([task])
        assert committed == []
        assert reason in line
        assert "submit it again" in line
        file.write_text(before)
    assert collection.commit([task]) == (["make@a"], [])


@acceptance
@pytest.mark.xdist_group("prefect")
@pytest.mark.usefixtures("reporting")
def test_a_flow_submits_follows_and_commits(submit: Callable[[], Submission], monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow follows jobs that an earlier flow left in the cluster. A failed job fails the flow with its message."""
    from fedweave.pipelines.scheduling import slurm_flow
    from fedweave.pipelines.scheduling.flows import reproduce

    monkeypatch.setattr(slurm_flow, "POLL", 0.2)
    Path("knobs/refuse-b").touch()
    with pytest.raises(RuntimeError, match="1 stage did not succeed on the cluster: make@b: error: asked to refuse"):
        reproduce(where="slurm")
    Path("knobs/refuse-b").unlink()
    submit()
    queries, query = [], collection.progress

    def answer_rarely(submission: Submission) -> list[collection.StageProgress]:
        """The queue gives no answer twice."""
        queries.append(submission)
        if len(queries) < 3:
            raise BadInput("squeue: no answer within 120 s")
        return query(submission)

    monkeypatch.setattr(collection, "progress", answer_rarely)
    assert reproduce(where="slurm").startswith("1 stage brought up to date, ")
    assert len(queries) > 2
    assert stale_stages() == []


BAD = [
    ("{executor: slum}", "executor: 'slum' is unknown; did you mean 'slurm'"),
    ("{default: {gpus: -1}}", r"default.gpus: -1 .* between 0 and 64"),
    ("{default: {cpu: 2}}", "default.cpu: not a setting of default: 'cpu' is unknown; did you mean 'cpus'"),
    ("{default: {memory: 16}}", "default.memory: 16 is not text"),
    ("{default: {memory: 16X}}", "default.memory: '16X' is not a size; write for example 500M or 16G"),
    ("{stages: {train: {time: never}}}", "stages.train.time: 'never' is not a duration"),
    ("{stages: {train: {time: 0}}}", "stages.train.time: 0 is not a duration"),
    ("{stages: {trian: {}}}", "stages: 'trian' is unknown; did you mean 'train'"),
    ("{stages: {train: 3}}", "stages.train: 3 is not a mapping"),
    ("{methods: {dito: {}}}", "methods: 'dito' is unknown; did you mean 'ditto'"),
    ("{default: {flags: {mem: 3}}}", r"default.flags.mem: is set by fedweave"),
    ("{default: {flags: {--account: a}}}", r"default.flags.--account: is set by fedweave, or begins with no letter"),
    ("{default: {flags: {1: 1}}}", r"default.flags.1: is set by fedweave, or begins with no letter"),
    ("{default: {flags: {output: x.log}}}", "default.flags.output: is set by fedweave"),
    ("{default: {flags: {no-requeue: true}}}", "default.flags.no-requeue: is set by fedweave"),
    ("{default: {flags: {nodes: 2}}}", "default.flags.nodes: is set by fedweave"),
    ("{requeues: -1}", "requeues: -1"),
    ("\xff\xfe", r"cluster.yaml: not YAML: .*; correct that file"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_an_invalid_cluster_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(BadInput, match=words) as caught:
        resources.load(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n# cpus: 2\n"])
def test_an_empty_cluster_file_has_the_defaults(text: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert resources.load(file) == resources.Cluster()


def test_a_job_is_queued_again_by_a_signal_before_its_first_stage() -> None:
    job = pickle.loads(pickle.dumps(StageJob([])))
    assert job.checkpoint().function.tasks == ()


def test_a_damaged_record_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = submissions.submission_folder("fedaghn/table1") / "submission.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    with pytest.raises(BadInput, match=r"submission.json: damaged .*scancel.*submit again") as caught:
        submissions.studies()
    assert "\n" not in str(caught.value)


SBATCH = """#!/bin/sh
echo x >> calls
[ "$(wc -l < calls)" = 1 ] && echo "Submitted batch job 71" && exit
echo "sbatch: error: Invalid qos specification" >&2
exit 1
"""


def test_every_array_is_recorded_before_the_next_one_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the second array is refused. The first one, which is in the record, is cancelled."""
    programs = {"sbatch": SBATCH, "srun": "#!/bin/sh\n", "scancel": '#!/bin/sh\necho "$@" >> cancelled\n'}
    for name, script in programs.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    tasks = {name: StageTask(name, "true", {}, (), "", "", str(tmp_path), "outcome", 0) for name in ("tune", "train")}
    kinds, needs = {"tune": ("tune", ""), "train": ("train", "ditto")}, {"tune": [], "train": ["tune"]}
    records: list[dict[str, str]] = []
    with pytest.raises(BadInput, match="sbatch refuses train: Invalid qos"):
        batches.submit(resources.Cluster(), tasks, needs, kinds, tmp_path / "jobs", records.append)
    assert records == [{"tune": "71"}, {}]
    assert (tmp_path / "cancelled").read_text().split() == ["--quiet", "71"]


def test_the_most_specific_settings_apply() -> None:
    """Method before stage before default. Flags are joined."""
    cluster = resources.Cluster(
        default={"cpus": 2, "memory": "4G", "flags": {"account": "lab"}},
        stages={"train": {"gpus": 1, "time": "1-02:30:30", "flags": {"qos": "long"}}},
        methods={"shn": {"memory": "1.5T"}},
    )
    train = cluster.resources("train", "shn")
    assert (train.cpus, train.gpus, train.gib, train.minutes) == (2, 1, 1536.0, 1591)
    assert train.flags == {"account": "lab", "qos": "long"}
    assert cluster.resources("tune") == resources.Resources(cpus=2, memory="4G", flags={"account": "lab"})
    assert train.mem == "1572864M"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90),
        ("90", 90),
        ("90:00", 90),
        ("1:30:00", 90),
        ("0:30", 1),
        ("1-12", 2160),
        ("1-12:00", 2160),
        ("1-0:0:1", 1441),
        ("infinite", None),
        ("1:2:3:4", None),
    ],
)
def test_durations_are_those_of_slurm(text: str | int, expected: int | None) -> None:
    assert resources.minutes(text) == expected


def test_without_slurm_a_submission_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadInput, match=r"sbatch: not found.*executor: local in cluster\.yaml"):
        slurm.check(resources.Cluster(), [("train", "ditto")])


def test_equal_requests_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sbatch` takes a while to answer, and a study has dozens of runs."""
    tried: list[str] = []

    def sbatch(*words: str) -> subprocess.CompletedProcess[str]:
        tried.append(" ".join(words))
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(slurm, "_run", sbatch)
    monkeypatch.setattr(slurm, "run_program", lambda *_: "")
    cluster = resources.Cluster(methods={"ditto": {"cpus": 4}, "fedper": {"cpus": 4}})
    slurm.check(cluster, [(stage, method) for stage in ("train", "tune") for method in ("ditto", "fedper", "fedavg")])
    assert [re.findall(r"cpus-per-task=(\d)", words) for words in tried] == [["4"], ["1"]]
