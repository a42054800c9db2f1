#!/bin/sh
# pandas 3.1.1 with pyarrow 25.0.1: a column of categories that are whole numbers comes back from Parquet as numbers.
#
# Guess: a table that pandas writes to Parquet and reads again has the types that it had. It does so for categories
# that are texts, and the file's own metadata says "categorical" for both columns.
# What happens: the column of numbers is int64 after the reading, without a warning. A federation whose clients, wards
# or diagnoses are categories of numbers gets a feature with an order and distances, where there are names.
# Output seen: "metadata: categorical, categorical; read: int64, category".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" pandas==3.1.1 pyarrow==25.0.1
cd "$dir"
env/bin/python -W error - <<'END'
import pandas as pd
import pyarrow.parquet

table = pd.DataFrame({"ward": pd.Categorical([30, 10, 20]), "sex": pd.Categorical(["f", "m", "f"])})
table.to_parquet("rows.parquet")
columns = pyarrow.parquet.read_schema("rows.parquet").pandas_metadata["columns"]
said = [column["pandas_type"] for column in columns]
read = [str(kind) for kind in pd.read_parquet("rows.parquet").dtypes]
print(f"metadata: {', '.join(said)}; read: {', '.join(read)}")
assert said == ["categorical", "categorical"]
assert read == ["int64", "category"]
END
