"""A SLURM cluster of two nodes on this host, from the system's packages, for tests and trials of `fedweave cluster`.

python tools/slurm.py install          install slurm-wlm and munge with apt (Debian, Ubuntu), unless they are there
python tools/slurm.py start FOLDER     start it with all of its state in FOLDER; print the line that selects it
python tools/slurm.py stop FOLDER      end it

It needs no service manager, no file in /etc and no fixed port. Partitions: `cpu` (both nodes, the default), `urgent`
(both nodes; its jobs preempt those of `cpu`, which are queued again), `large` (the second node).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
PACKAGES = ("slurm-wlm", "munge")
INSTALL_HINT = "make slurm installs it on Debian and Ubuntu"
NODES = ("first", "second")
MEMORY = 2000  # MiB of a node
PATIENCE = 60.0  # seconds for a daemon to answer
CONF = """
ClusterName=fedweave
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,batch_sched_delay=0,defer_batch
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=3
MinJobAge=60
InactiveLimit=0
MaxArraySize=1001
SlurmdParameters=config_overrides
"""


def describe_missing() -> str:
    """The programs that this host lacks, and how to install them. Empty if it lacks none."""
    programs = [name for name in PROGRAMS if _find_program(name) is None]
    return f"needs {', '.join(programs)}; {INSTALL_HINT}" if programs else ""


def install() -> None:
    """Install the packages if a program is missing, without starting a service."""
    if not describe_missing():
        return
    if shutil.which("apt-get") is None:
        sys.exit("slurm: there is no apt-get here; install SLURM and munge with the package manager of this system")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (("update", "-qq"), ("install", "-qq", "-y", "--no-install-recommends", *PACKAGES)):
        if subprocess.run(["apt-get", *arguments], env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(f"slurm: apt-get {arguments[0]} failed; see above (it needs the rights of root)")


def start(folder: Path) -> dict[str, str]:
    """Start munge, the controller and two nodes with all of their state in `folder`; returns the environment that
    selects this cluster.

    Raises:
        RuntimeError: a daemon does not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _start_munge(folder / "munge")
    environment = {"SLURM_CONF": str(_configure(folder))}
    for command in (("slurmctld", "-c"), *(("slurmd", "-N", name) for name in NODES)):
        _run([str(_find_program(command[0])), *command[1:]], environment)
    end = time.monotonic() + PATIENCE
    while (states := node_states(environment)) != dict.fromkeys(NODES, "idle"):
        if time.monotonic() > end:
            raise RuntimeError(f"slurm: the nodes do not answer: {states}; see {folder}/*.log")
        time.sleep(0.2)
    return environment


def node_states(environment: dict[str, str]) -> dict[str, str]:
    """Node -> its state by `sinfo`, for example "idle" or "drained"."""
    command = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return dict(line.split() for line in process.stdout.splitlines())


def stop(folder: Path) -> None:
    """End the daemons that were started in `folder`, jobs first."""
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    if (folder / "slurm.conf").is_file():
        subprocess.run(
            ["scancel", "--signal=KILL", "--full", "--state=RUNNING"],
            env=environment,
            check=False,
            capture_output=True,
            timeout=PATIENCE,
        )
    for name in (*(f"slurmd-{name}" for name in NODES), "slurmctld", "munge/munged"):
        end_daemon(folder / f"{name}.pid")


def end_daemon(file: Path) -> None:
    """End the daemon whose process number is in `file`, by SIGKILL after five seconds."""
    with suppress(OSError, ValueError):
        process = int(file.read_text())
        os.kill(process, signal.SIGTERM)
        for _ in range(50):
            time.sleep(0.1)
            os.kill(process, 0)
        os.kill(process, signal.SIGKILL)


def _start_munge(folder: Path) -> None:
    """Start munge with a key of its own."""
    folder.mkdir(mode=0o755, exist_ok=True)
    key = folder / "key"
    if not key.exists():
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
    options = [f"--{name}-file={folder / name}" for name in ("key", "log", "seed")]
    options += [f"--socket={folder / 'socket'}", f"--pid-file={folder / 'munged.pid'}"]
    _run([str(_find_program("munged")), "--force", *options], {})


def _configure(folder: Path) -> Path:
    """Write slurm.conf: two nodes on this host, each with a port of its own."""
    host, user = socket.gethostname(), Path("~").expanduser().owner()
    ports = _free_ports(1 + len(NODES))
    lines = [CONF.format(host=host, controller=ports[0], user=user, folder=folder)]
    for name, port in zip(NODES, ports[1:], strict=True):
        address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        lines.append(f"NodeName={name} {address} CPUs=2 RealMemory={MEMORY} State=UNKNOWN")
    everywhere = f"Nodes={','.join(NODES)} State=UP DefMemPerCPU=500 MaxTime=2:00:00"
    lines += [
        f"PartitionName=cpu {everywhere} Default=YES PriorityTier=1",
        f"PartitionName=urgent {everywhere} PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=large Nodes={NODES[1]} State=UP PriorityTier=1 MaxTime=30",
    ]
    (folder / "state").mkdir(exist_ok=True)
    file = folder / "slurm.conf"
    file.write_text("\n".join(lines) + "\n")
    return file


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]
    finally:
        for s in sockets:
            s.close()


def _find_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


def _run(command: list[str], environment: dict[str, str]) -> None:
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    if process.returncode:
        raise RuntimeError(f"slurm: {command[0]} could not be started: {(process.stdout + process.stderr).strip()}")


def main(action: str = "", folder: str = ".slurm") -> None:
    """Run the command line."""
    state_folder = Path(folder).resolve()
    if action == "install":
        install()
    elif action == "start":
        if reason := describe_missing():
            sys.exit(f"slurm: {reason}")
        print(f"export SLURM_CONF={start(state_folder)['SLURM_CONF']}")
    elif action == "stop":
        stop(state_folder)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
