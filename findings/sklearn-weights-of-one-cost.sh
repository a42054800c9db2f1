#!/bin/sh
# scikit-learn 1.9.1: weights of 1 give HistGradientBoosting the same model at many times the cost.
#
# Guess: `sample_weight=np.ones(n)` costs what no weights cost. A wrapper may then always pass weights, for instance to
# balance classes in some of its calls.
# What happens: predictions agree to the last bit. But with weights each of the 254 thresholds of a column with more
# than 255 values is sought by a call in Python that sorts the column, in place of one call of NumPy for all. With 300
# columns and 446 rows that is nearly the whole fit.
# Output seen: "the same predictions: True; weights of 1 take more than 4 times as long: True" (12 times).
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" scikit-learn==1.9.1 numpy==2.4.6
cd "$dir"
OMP_NUM_THREADS=1 env/bin/python -W error - <<'END'
import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

random = np.random.default_rng(0)
x, y = random.normal(size=(446, 300)), random.integers(7, size=446)


def fit(weights):
    start = time.process_time()
    model = HistGradientBoostingClassifier(max_iter=10, early_stopping=False, random_state=0).fit(x, y, weights)
    return model.predict_proba(x), time.process_time() - start


fit(None)  # the first one also loads what it needs
(plain, short), (weighted, long) = fit(None), fit(np.ones(446))
same = np.array_equal(plain, weighted)
print(f"the same predictions: {same}; weights of 1 take more than 4 times as long: {long > 4 * short}")
print(f"{short:.1f} s and {long:.1f} s")
assert same and long > 4 * short
END
