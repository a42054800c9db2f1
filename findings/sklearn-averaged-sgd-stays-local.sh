#!/bin/sh
# scikit-learn 1.9.1: with `average=True`, SGDClassifier goes on from its own weights, not from those that it is given.
#
# Guess: a round of federated averaging writes the mean of the clients into `coef_` and `intercept_` and calls
# `partial_fit`, which goes on from there. Without averaging it does so, and predictions use what was written in both
# cases.
# What happens: an averaged model trains hidden weights and shows their mean over time in `coef_`. What is written
# there is lost at the next `partial_fit`. Twenty rounds of federated averaging then give each client exactly the model
# of twenty epochs alone, bit by bit: "federated" and "local" are one row twice, and no message says why. SGDRegressor
# does the same.
# Output seen: "federated equals local: average=False: False, average=True: True; predictions from the mean: True".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" scikit-learn==1.9.1 numpy==2.4.6
cd "$dir"
env/bin/python -W error - <<'END'
import numpy as np
from sklearn.linear_model import SGDClassifier

random = np.random.default_rng(0)
rows = random.normal(size=(2, 30, 3))  # of two clients
labels = (rows[:, :, 0] + 0.3 * random.normal(size=(2, 30)) > 0).astype(int)


def clients(average):
    models = [SGDClassifier(loss="log_loss", average=average, random_state=0) for _ in rows]
    for model, x, y in zip(models, rows, labels, strict=True):
        model.partial_fit(x, y, classes=[0, 1])
    return models


def compare(average):
    federated, local = clients(average), clients(average)
    for _ in range(20):
        coef = np.mean([model.coef_ for model in federated], axis=0)
        intercept = np.mean([model.intercept_ for model in federated], axis=0)
        for model, own, x, y in zip(federated, local, rows, labels, strict=True):
            model.coef_, model.intercept_ = coef.copy(), intercept.copy()
            used = np.array_equal(model.decision_function(x), x @ coef[0] + intercept)
            model.partial_fit(x, y)
            own.partial_fit(x, y)
    return all(np.array_equal(a.coef_, b.coef_) for a, b in zip(federated, local, strict=True)), used


plain, averaged = compare(False), compare(True)
print(f"federated equals local: average=False: {plain[0]}, average=True: {averaged[0]};",
      f"predictions from the mean: {averaged[1]}")
assert plain == (False, True) and averaged == (True, True)
END
