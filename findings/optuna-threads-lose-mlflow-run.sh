#!/bin/sh
# Optuna 5.0.0 with MLflow 3.17.2: a search with two jobs logs its trials into runs that nobody started.
#
# Guess: inside `with mlflow.start_run():` the function `mlflow.log_metric` writes into this run, whatever
# `study.optimize(..., n_jobs=...)` is.
# What happens: with `n_jobs=1` it does. With 2, Optuna calls the objective in other threads, where MLflow sees no
# active run and starts one for each thread, with a name that it makes up. The search's own run stays empty, and the
# new runs are still RUNNING when the search is over. No setting of the search looks like one of the log.
# Output seen: "runs with scores: 1 job ['search'], 2 jobs: 2 others, all RUNNING".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" optuna==5.0.0 mlflow==3.17.2
cd "$dir"
env/bin/python -W ignore - <<'END'
import mlflow
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
mlflow.set_tracking_uri("sqlite:///mlflow.db")


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    mlflow.log_metric("score", x, step=trial.number)
    return x


def runs(jobs):
    mlflow.set_experiment(f"{jobs} jobs")
    with mlflow.start_run(run_name="search"):
        optuna.create_study().optimize(objective, n_trials=8, n_jobs=jobs)
    found = mlflow.search_runs(filter_string="attributes.status != 'DELETED'")
    return found[found["metrics.score"].notna()][["tags.mlflow.runName", "status"]].values.tolist()


one, two = runs(1), runs(2)
print(f"runs with scores: 1 job {[name for name, _ in one]}, 2 jobs: {len(two)} others, all {two[0][1]}")
assert one == [["search", "FINISHED"]]
assert two and all(name != "search" and status == "RUNNING" for name, status in two)
END
