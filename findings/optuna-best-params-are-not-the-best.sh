#!/bin/sh
# Optuna 5.0.0 with scikit-learn 1.9.1: of the choices 1 and 1.0 a trial uses one, and the study records the other.
#
# Guess: `best_params` are the values that the best trial was given, so that a model trained with them is the one that
# won.
# What happens: `suggest_categorical` hands out any of the choices, but looks up which one it was by `==`, where 1, 1.0
# and True are equal. The trial trains with 1.0, which scikit-learn takes as all features, and the record says 1, which
# is one feature. All trials with 1.0 count for 1, also for the sampler, and the model for use is another one than the
# model that was scored. It is the same with `[False, 0, 0.5]`. No warning.
# Output seen: "used ['0.5', '1', '1.0'], recorded ['0.5', '1'], best 1; R2 of the best trial 0.99, of a model with
# best_params 0.32".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" optuna==5.0.0 scikit-learn==1.9.1 numpy==2.4.6
cd "$dir"
env/bin/python -W error - <<'END'
import numpy as np
import optuna
from sklearn.ensemble import RandomForestRegressor

optuna.logging.set_verbosity(optuna.logging.ERROR)
random = np.random.default_rng(0)
rows = random.normal(size=(600, 20))
targets = rows[:, 0]
used = set()


def score(max_features):
    forest = RandomForestRegressor(10, max_features=max_features, random_state=0)
    return forest.fit(rows[:300], targets[:300]).score(rows[300:], targets[300:])


def objective(trial):
    max_features = trial.suggest_categorical("max_features", [1, 0.5, 1.0])
    used.add(repr(max_features))
    return score(max_features)


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=12)
recorded = {repr(trial.params["max_features"]) for trial in study.trials}
best, again = study.best_params["max_features"], score(**study.best_params)
print(f"used {sorted(used)}, recorded {sorted(recorded)}, best {best};",
      f"R2 of the best trial {study.best_value:.2f}, of a model with best_params {again:.2f}")
assert used == {"0.5", "1", "1.0"} and recorded == {"0.5", "1"} and repr(best) == "1"
assert study.best_value > again + 0.2
END
