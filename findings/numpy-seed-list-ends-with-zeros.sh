#!/bin/sh
# NumPy 2.4.6: `default_rng([seed, 0])` is `default_rng(seed)`, so that the first client draws what the server draws.
#
# Guess: a list of numbers is a name for a stream: `default_rng(seed)` for the server, `default_rng([seed, client])`
# for each client and `default_rng([seed, client, round])` for each round are independent. NumPy's documentation gives
# lists to workers, and says that the seed may stand first. [0, seed] and seed do differ, and so do a generator and
# those that it spawns.
# What happens: a list of fewer than four numbers is filled with zeros, so that zeros at its end do not count. Client
# 0 has the stream of the server, and in round 0 each client has the stream of its own start, such as that of its
# split. The noise of client 0 is then the server's noise, which doubles or cancels, and who takes part in a round
# depends on the numbers that cut the rows of client 0. Count from 1, or end each list with a number that is not 0.
# Output seen: "correlation of the server's noise with that of clients 0, 1, 2: 1.00, 0.08, -0.03; of a client's noise
# in rounds 0, 1 with that of its start: 1.00, 0.08".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" numpy==2.4.6
cd "$dir"
env/bin/python -W error - <<'END'
import numpy as np

SEED = 7


def noise(*name):
    return np.random.default_rng(name).standard_normal(1000)


def correlation(first, second):
    return np.corrcoef(first, second)[0, 1]


server = np.random.default_rng(SEED).standard_normal(1000)
clients = [correlation(server, noise(SEED, client)) for client in range(3)]
rounds = [correlation(noise(SEED, 5), noise(SEED, 5, round)) for round in range(2)]
shown = [", ".join(f"{value:.2f}" for value in values) for values in (clients, rounds)]
print(f"correlation of the server's noise with that of clients 0, 1, 2: {shown[0]};",
      f"of a client's noise in rounds 0, 1 with that of its start: {shown[1]}")
assert np.array_equal(server, noise(SEED, 0)) and np.array_equal(noise(SEED, 5), noise(SEED, 5, 0))
assert max(map(abs, [*clients[1:], *rounds[1:]])) < 0.2
assert abs(correlation(server, noise(0, SEED))) < 0.2
END
