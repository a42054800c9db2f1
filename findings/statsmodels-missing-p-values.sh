#!/bin/sh
# statsmodels 0.15.0: one missing p value makes Holm stricter, and Benjamini-Hochberg and Hommel give nothing at all.
#
# Guess: `multipletests` leaves a missing p value (a client with one class, a test that cannot be done) out, as other
# functions of statistics do, or refuses it.
# What happens: Holm counts it as one more test, so that others lose significance without a message. `fdr_bh` and
# `hommel` return NaN for every test. Three families of corrections, two silent answers, neither of them that of the
# tests that were made.
# Output seen: "0.012, 0.02, 0.03 with one NaN: holm 0.048, fdr_bh nan; without: holm 0.036, fdr_bh 0.030".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6 pandas==3.1.1
cd "$dir"
env/bin/python -W ignore - <<'END'
import numpy as np
from statsmodels.stats.multitest import multipletests

made = np.array([0.012, 0.02, 0.03])
with_missing = np.append(made, np.nan)
first = {m: (multipletests(with_missing, method=m)[1][0], multipletests(made, method=m)[1][0])
         for m in ("holm", "fdr_bh", "hommel")}
print("0.012, 0.02, 0.03 with one NaN:", ", ".join(f"{m} {first[m][0]:.3f}" for m in ("holm", "fdr_bh")) + ";",
      "without:", ", ".join(f"{m} {first[m][1]:.3f}" for m in ("holm", "fdr_bh")))
assert np.allclose(first["holm"], [0.048, 0.036]) and np.isclose(first["fdr_bh"][1], 0.03)
assert np.isnan(first["fdr_bh"][0]) and np.isnan(first["hommel"][0])
END
