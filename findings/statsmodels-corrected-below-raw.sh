#!/bin/sh
# statsmodels 0.15.0: p values corrected by the two-stage method are smaller than the raw ones and depend on alpha.
#
# Guess: a corrected p value is at least the raw one, and belongs to the data: it can be written into a table and
# compared with any level later. It is so for Holm, Hochberg, Hommel and Benjamini-Hochberg.
# What happens: `fdr_tsbh` first counts the hypotheses that BH keeps at `alpha` and scales all values by their share.
# A table of six comparisons made at the default of 0.05 turns p = 0.20 into 0.08; made at 0.01 the same p stays 0.20.
# Output seen: "raw 0.20: 0.20 at 0.01, 0.08 at 0.05; smaller than raw: 4 of 6".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6 pandas==3.1.1
cd "$dir"
env/bin/python -W ignore - <<'END'
import numpy as np
from statsmodels.stats.multitest import multipletests

raw = np.array([0.001, 0.01, 0.02, 0.03, 0.2, 0.5])
strict, usual = (multipletests(raw, alpha=alpha, method="fdr_tsbh")[1] for alpha in (0.01, 0.05))
below = int((usual < raw).sum())
print(f"raw 0.20: {strict[4]:.2f} at 0.01, {usual[4]:.2f} at 0.05; smaller than raw: {below} of 6")
assert np.allclose([strict[4], usual[4]], [0.2, 0.08]) and below == 4
assert (multipletests(raw, method="fdr_bh")[1] >= raw).all()
END
