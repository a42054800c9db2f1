#!/bin/sh
# Ray 2.60.0 with PyTorch 2.13.0: a task of two CPUs computes with one thread if its worker had a task of one before.
#
# Guess: Ray sets OMP_NUM_THREADS to the `num_cpus` of each task, so that a task of two CPUs computes with two threads.
# Tasks with other resources get other workers, or the number of threads follows.
# What happens: Ray uses an idle worker again whatever CPUs its last task had. It sets the variable anew, and a look at
# it shows 2, but PyTorch has read it once, when the first task of this worker imported it. The speed of a task, and the
# last digits of its sums, then depend on what ran before it: two threads for tasks of one CPU in the other order.
# Needs two cores.
# Output seen: "variable and threads: 1 CPU first: ('1', 1) ('2', 1), 2 CPUs first: ('2', 2) ('1', 2)".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" ray==2.60.0 torch==2.13.0 numpy==2.4.6
cd "$dir"
export RAY_USAGE_STATS_ENABLED=0 RAY_raylet_start_wait_time_s=200
unset OMP_NUM_THREADS
HOME="$dir" env/bin/python -W ignore - <<'END'
import ray


def look():
    import os

    import torch

    return os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), os.getpid()


def in_turn(*cpus):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    seen = [ray.get(ray.remote(num_cpus=number)(look).remote()) for number in cpus]
    ray.shutdown()
    assert len({process for _, _, process in seen}) == 1
    return [(variable, threads) for variable, threads, _ in seen]


up, down = in_turn(1, 2), in_turn(2, 1)
print(f"variable and threads: 1 CPU first: {up[0]} {up[1]}, 2 CPUs first: {down[0]} {down[1]}")
assert up == [("1", 1), ("2", 1)] and down == [("2", 2), ("1", 2)]
END
