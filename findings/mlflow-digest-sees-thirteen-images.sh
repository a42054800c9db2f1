#!/bin/sh
# MLflow 3.17.2: of 5,000 images of 28 x 28, the digest of a logged data set depends on the first thirteen only.
#
# Guess: the digest that `log_input` records, "hash, fingerprint" in the documentation, changes if the data change, so
# that two runs with one digest were trained on the same rows, and a search for the digest finds the runs of a data set.
# What happens: it is made of the first 10,000 numbers of an array and its shape, and of the first 10,000 rows of a
# table. Images from the fourteenth on may be others, labels after row 10,000 may be flipped, and columns of dates or
# truth values do not count at all. The runs before and after a correction of the data, or of clients that share their
# first rows, have one data set in the record. Give `digest=` a hash of your own.
# Output seen: "same digest: first image replaced False, all but thirteen replaced True, labels flipped from row 10,000
# on True, True turned into False True; data sets on record for two runs: 1" (on one line).
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" mlflow-skinny==3.17.2 sqlalchemy==2.0.58 alembic==1.20.1 pandas==3.1.1 \
    numpy==2.4.6
cd "$dir"
MLFLOW_DISABLE_TELEMETRY=true env/bin/python -W ignore - 2>/dev/null <<'END'
import mlflow
import numpy as np
import pandas as pd

mlflow.set_tracking_uri("sqlite:///store.db")
draws = np.random.default_rng(0)
images, others = draws.random((2, 5000, 28, 28))
table = pd.DataFrame({"x": draws.random(20_000), "label": draws.integers(2, size=20_000), "train": True})
logged = []


def recorded(data):
    make = mlflow.data.from_pandas if isinstance(data, pd.DataFrame) else mlflow.data.from_numpy
    with mlflow.start_run() as run:
        mlflow.log_input(make(data, source="data", name="rows"))
    dataset = mlflow.get_run(run.info.run_id).inputs.dataset_inputs[0].dataset
    logged.append((dataset.name, dataset.digest, dataset.schema, dataset.profile))
    return dataset.digest


first = recorded(images) == recorded(np.concatenate([others[:1], images[1:]]))
logged.clear()
rest = recorded(images) == recorded(np.concatenate([images[:13], others[13:]]))
records = len({*logged})
flipped = recorded(table) == recorded(table.assign(label=table.label.where(table.index < 10_000, 1 - table.label)))
turned = recorded(table) == recorded(table.assign(train=False))
print(f"same digest: first image replaced {first}, all but thirteen replaced {rest}, labels flipped from row 10,000 on",
      f"{flipped}, True turned into False {turned}; data sets on record for two runs: {records}")
assert (first, rest, flipped, turned, records) == (False, True, True, True, 1)
END
