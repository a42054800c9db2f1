"""A study on a real SLURM cluster of two nodes: preempted, killed, cancelled or drained, the results are the same to
the bit.

`tools/slurm.py` starts the cluster on this host if its programs are installed.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from servers import Project, newest_checkpoint, running, state, until

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import batches, resources, slurm, submissions
from fedweave.pipelines.scheduling.submissions import Submission
from tools import slurm as two_nodes

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(900)]

RUN = "digits-fedavg_ft"  # the longest run, with a checkpoint after every round
MEASURED = ["seconds"]  # columns of the leaderboard that are not results


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that select the cluster."""
    if reason := two_nodes.describe_missing():
        pytest.skip(f"a real SLURM {reason}")
    folder = tmp_path_factory.mktemp("slurm")
    try:
        yield two_nodes.start(folder)
    finally:
        two_nodes.stop(folder)


class Login:
    """A project on the login node of the cluster."""

    def __init__(self, project: Project, environment: dict[str, str]) -> None:
        self.project, self.environment = project, environment
        self.jobs = project.folder / ".fedweave" / "cluster" / "small" / "project"  # the folder in which jobs run
        (project.folder / "cluster.yaml").write_text("default: {cpus: 2, memory: 1500M, time: 30}\n")

    def fedweave(self, *words: str, code: int = 0) -> str:
        """Runs `fedweave cluster WORDS`, which ends with `code`. Returns its output."""
        module = "fedweave.pipelines.commands.main"
        done = self.project.python(module, "cluster", *words, check=False, COLUMNS="200", **self.environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def slurm(self, *command: str) -> str:
        """The output of one of SLURM's programs."""
        env = {**os.environ, **self.environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout

    def submission(self) -> Submission:
        """The record of the submission."""
        here = Path.cwd()
        os.chdir(self.project.folder)
        try:
            submission = submissions.load("small")
        finally:
            os.chdir(here)
        assert submission is not None
        return submission

    def job(self, stage: str) -> str:
        """The number of the job of `stage`."""
        return next(job.job for job in self.submission().jobs if job.task.stage == stage)

    def queue(self) -> dict[str, tuple[str, str]]:
        """Stage -> (state, node) of the jobs in the queue."""
        rows = self.slurm("squeue", "--array", "--noheader", "--format=%i|%T|%N").split()
        states = {job: (state, node) for job, state, node in (row.split("|") for row in rows)}
        return {job.task.stage: states.get(job.job, ("", "")) for job in self.submission().jobs}

    def log(self) -> str:
        """The text of all logs of jobs."""
        folder = self.project.folder / ".fedweave" / "cluster" / "small" / "jobs"
        return "".join(file.read_text() for file in sorted(folder.glob("*_log.out")))

    def training(self) -> list[int]:
        """The processes that train the longest run."""
        return running(f"stages.train {RUN}", self.jobs)

    def use_both_nodes(self) -> bool:
        """Whether jobs run on both nodes. This is not always so at the same time, because short jobs end soon."""
        seen: set[str] = set()

        def both() -> bool:
            seen.update(node for state, node in self.queue().values() if state == "RUNNING")
            return len(seen) == 2

        return until(both, 120)

    def hold(self) -> None:
        """Stops the processes of the longest run after a third of its rounds, so that it cannot end before the test has
        acted. SLURM continues them when it ends their job.
        """
        assert until(lambda: "round 20/60" in self.log(), 240), self.log()
        assert until(self.stop_between_lines), self.log()
        assert "round 60/60" not in self.log()

    def stop_between_lines(self) -> bool:
        """Whether the longest run is stopped far from a round that the log shows. Otherwise it continues: the log would
        show such a round twice if its checkpoint is not there yet. A process that starts a program while it is stopped
        continues as well, since it waits for the child that was stopped with it.
        """
        processes = self.training()
        send(signal.SIGSTOP, processes)
        stopped = until(lambda: all(state(process) in ("T", "Z", "") for process in processes), 5)
        newest = newest_checkpoint(self.jobs)
        if stopped and newest >= 20 and newest % 20 < 10:
            return True
        send(signal.SIGCONT, processes)
        return False

    def empty(self) -> bool:
        """Whether no job is left in the queue."""
        return until(lambda: not self.slurm("squeue", "--noheader").strip(), 400)


@pytest.fixture
def login(partitioned_project: Project, tmp_path: Path, environment: dict[str, str]) -> Iterator[Login]:
    """A project whose data are partitioned."""
    one = Login(partitioned_project.copy(tmp_path / "project"), environment)
    yield one
    subprocess.run(["scancel", "--full", "--user", str(os.getuid())], env={**os.environ, **environment}, check=False)
    assert one.empty()


def send(number: int, processes: list[int]) -> None:
    """Sends a signal to those of `processes` that have not ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def rounds(text: str) -> list[int]:
    """How often the log has each third of the longest run."""
    return [len(re.findall(rf"{RUN}, seed 0: round {number}/60", text)) for number in (20, 40, 60)]


def board(folder: Path) -> pd.DataFrame:
    """The leaderboard without the columns that a clock measures."""
    table = pd.read_csv(folder / "results" / "small" / "leaderboard.csv")
    return table[[column for column in table if not any(word in column for word in MEASURED)]]


def test_two_nodes_and_a_preemption_give_the_bits_of_repro(
    login: Login, partitioned_project: Project, tmp_path: Path
) -> None:
    """The longest run is preempted and continues from its last checkpoint. Afterwards DVC has nothing to do."""
    output = login.fedweave("submit")
    assert "3 stages in one job of SLURM" in output
    assert login.use_both_nodes()
    login.hold()
    assert "small: 3 stages are submitted and not collected" in login.fedweave("submit", code=2)
    node = login.queue()[f"train@{RUN}"][1]
    urgent = ["-p", "urgent", "-w", node, "--mem=1500M", "-c2"]
    login.slurm("sbatch", *urgent, "--output=/dev/null", "--wrap", "sleep 1")
    assert until(lambda: "Restarts=1" in login.slurm("scontrol", "show", "job"), 60)
    assert login.empty()
    assert re.search(rf"train@{RUN} .* finished .* restarts: 1", login.fedweave("status"))
    output = login.fedweave("collect", "--wait")
    assert "small: 3 stages committed" in output
    assert "FedAvg-FT" in output
    assert rounds(login.log()) == [1, 1, 1]
    assert login.project.python("dvc", "status").stdout.strip().endswith("up to date.")
    reference = partitioned_project.copy(tmp_path / "reference")
    reference.python("dvc", "repro")
    pd.testing.assert_frame_equal(board(login.project.folder), board(reference.folder), check_exact=True)
    for run in ("digits-fedavg", "digits-local", RUN):
        files = [
            p.folder / "results" / "small" / "runs" / run / "evaluations.parquet" for p in (login.project, reference)
        ]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_run_continues_after_a_cancellation_a_kill_and_a_drained_node(login: Login) -> None:
    """A cancelled run continues when it is submitted again. After a time limit or a kill, a run continues by itself."""
    login.fedweave("submit")
    login.hold()
    assert "stages cancelled" in login.fedweave("cancel")
    assert login.empty()
    first = login.log()
    assert f"train@{RUN}: without an outcome" in login.fedweave("collect", code=2)
    login.slurm("scontrol", "update", "NodeName=first", "State=DRAIN", "Reason=test")
    try:
        login.fedweave("submit")
        assert until(lambda: bool(login.training()), 120)
        login.slurm("scancel", "--signal=USR2", login.job(f"train@{RUN}"))  # as before the time limit
        assert until(lambda: "Restarts=1" in login.slurm("scontrol", "show", "job", login.job(f"train@{RUN}")), 60)
        assert until(lambda: bool(login.training()), 120)
        nodes = {node for state, node in login.queue().values() if state == "RUNNING"}
        os.kill(login.training()[0], signal.SIGKILL)
        assert nodes == {"second"}
        output = login.fedweave("collect", "--wait")
    finally:
        login.slurm("scontrol", "update", "NodeName=first", "State=RESUME")
    assert "committed" in output
    assert rounds(first + login.log()) == [1, 1, 1]
    assert "train" not in login.project.python("dvc", "status").stdout


BEYOND = [
    ("{default: {partition: gpu}}", "--partition=gpu: invalid partition specified: gpu"),
    ("{methods: {ditto: {memory: 900G}}}", "--mem=921600M: .*Requested node configuration is not available"),
    ("{stages: {train: {cpus: 64}}}", "--cpus-per-task=64 .*Requested node configuration is not available"),
    ("{stages: {train: {gpus: 1}}}", r"--gpus-per-node=1: Invalid generic resource \(gres\) specification"),
    ("{default: {flags: {foo: 3}}}", "--foo=3: sbatch: unrecognized option '--foo=3'"),
    ('{default: {time: "9:00:00", partition: large}}', "partition=large: the limit of the partition is 30 minutes"),
    ('{default: {time: "9:00:00", partition: "cpu,large"}}', "the limit of the partition is 120 minutes"),
    ('{default: {time: "9:00:00"}}', "--time=540: the limit of the partition is 120 minutes"),
]


@pytest.mark.parametrize(("text", "words"), BEYOND)
def test_resources_that_no_node_has_are_refused_in_one_line(
    text: str, words: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
    (tmp_path / "cluster.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    cluster = resources.load()
    with pytest.raises(BadInput, match=words) as caught:
        slurm.check(cluster, [("train", "ditto")])
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("cluster.yaml: sbatch refuses train of ditto with ")


def test_flags_with_underscores_or_null_are_tried_as_they_are_submitted(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage takes a flag of `default` away with null."""
    monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
    flags = {"mail_user": "someone", "nodelist": "third"}
    cluster = resources.Cluster(default={"flags": flags}, stages={"train": {"flags": {"nodelist": None}}})
    slurm.check(cluster, [("train", "ditto")])
    submitted = batches._parameters(cluster, cluster.resources("train", "ditto"), [])["additional_parameters"]
    assert submitted == {"requeue": True, "kill-on-invalid-dep": "yes", "mail-user": "someone"}


def test_a_refusal_by_sbatch_is_one_line_and_nothing_is_submitted(login: Login) -> None:
    """The refused flag is one that only SLURM knows."""
    (login.project.folder / "cluster.yaml").write_text("{default: {flags: {nodelist: third}}}\n")
    output = login.fedweave("submit", code=2)
    assert "cluster.yaml: sbatch refuses train of fedavg with" in output
    assert "Invalid node name" in output
    assert len(output.splitlines()) == 1
    assert "nothing is submitted" in login.fedweave("status", code=2)
