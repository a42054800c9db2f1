#!/bin/sh
# statsmodels 0.15.0: p values from cluster-robust errors count few clients as infinitely many.
#
# Guess: `OLS(...).fit(cov_type="cluster")` tests with Student's t: OLS does so by default, and the fit knows and
# stores the degrees of freedom, which are the number of clusters minus one.
# What happens: with any robust covariance OLS takes the normal distribution instead, and the stored degrees of
# freedom are not used. With five clients the p value of a mean is 0.000006 instead of 0.011. `use_t=True` gives the
# latter.
# Output seen: "p = 0.000006 with 4 degrees of freedom stored, with use_t 0.010669".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6 pandas==3.1.1
cd "$dir"
env/bin/python -W ignore - <<'END'
import numpy as np
import statsmodels.api as sm

rng = np.random.default_rng(0)
client = np.repeat(np.arange(5), 20)
gain = rng.normal(size=5)[client] + rng.normal(size=100) + 0.8
model, groups = sm.OLS(gain, np.ones(100)), {"groups": client}
default = model.fit(cov_type="cluster", cov_kwds=groups)
student = model.fit(cov_type="cluster", cov_kwds=groups, use_t=True)
print(f"p = {default.pvalues[0]:.6f} with {default.df_resid_inference:.0f} degrees of freedom stored,",
      f"with use_t {student.pvalues[0]:.6f}")
assert default.df_resid_inference == 4 and default.pvalues[0] < 1e-4 and 0.01 < student.pvalues[0] < 0.012
END
