"""`fedweave compare` and `fedweave predict` give the same as the API, from files, in one folder."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.pipelines.commands import listing, main, own_data, recommend, records, studies
from tests.fake_results import ARMS, write_study

SETTINGS: dict[str, Any] = {"client": "dest", "label": "late", "methods": ["local", "ditto"], "rounds": 3, "seeds": 2}


def flights(count: int = 600) -> pd.DataFrame:
    """Flights to six places. Long flights tend to be late."""
    draws = np.random.default_rng(0)
    distance = draws.normal(size=count)
    return pd.DataFrame(
        {
            "distance": np.where(draws.random(count) < 0.1, np.nan, distance),
            "weather": draws.choice(["rain", "sun"], count),
            "time_hour": pd.date_range("2013-01-01", periods=count, freq="h").strftime("%Y-%m-%d %H:%M:%S"),
            "dest": draws.choice(["BOS", "ORD", "ATL", "LAX", "MIA", "SFO"], count),
            "late": np.where(distance + 0.5 * draws.normal(size=count) > 0, "late", "on time"),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods, and the file that it has read."""
    place = tmp_path_factory.mktemp("own")
    flights().to_csv(place / "flights.csv", index=False)
    own_data.compare(
        place / "flights.csv",
        out=place / "out",
        time="time_hour",
        split="chronological",
        gap=2,
        shares="0.5,0.2,0.3",
        settings=["lr=0.2", "model.hidden=8"],
        **SETTINGS,
    )
    return place


def test_the_scores_are_those_of_the_api(folder: Path) -> None:
    """The folder has the report and the tables."""
    federation = fw.Federation.from_pandas(
        pd.read_csv(folder / "flights.csv"),
        client="dest",
        label="late",
        time="time_hour",
        gap=2,
        shares={"train": 0.5, "val": 0.2, "test": 0.3},
        name="flights",
    )
    with pytest.warns(UserWarning, match="validation round"):
        done = fw.compare(
            federation,
            ["local", "ditto"],
            model={"name": "mlp", "hidden": 8},
            lr=0.2,
            rounds=3,
            seeds=2,
            progress=False,
        )
    ran = fw.load(folder / "out")
    pd.testing.assert_frame_equal(ran.scores(), done.scores(), check_exact=True)
    assert {"report.html", "leaderboard.csv", "runs", "partitions"} <= {
        path.name for path in (folder / "out").iterdir()
    }


def test_compare_prints_the_leaderboard_sentences_and_warnings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second call trains nothing."""
    before = {path: path.stat().st_mtime_ns for path in (folder / "out" / "runs").rglob("run.json")}
    test_again = {"time": "time_hour", "split": "chronological", "gap": 2, "shares": "0.5,0.2,0.3"}
    own_data.compare(
        folder / "flights.csv", out=folder / "out", settings=["lr=0.2", "model.hidden=8"], **test_again, **SETTINGS
    )
    assert before == {path: path.stat().st_mtime_ns for path in before}
    printed = capsys.readouterr().out
    for text in (
        "Who leads:\n",
        "Against Local: ",
        "Tuning: ",
        "Convergence: ",
        "warning: ",
        "report.html shows",
        "Ditto",
    ):
        assert text in printed


def test_warnings_about_the_data_come_before_the_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And once, so that who misread a column need not wait for the leaderboard."""
    flights().drop(columns="time_hour").to_csv(tmp_path / "indexed.csv")
    options = {**SETTINGS, "methods": ["local"], "rounds": 1, "seeds": 1, "tune": 0}
    own_data.compare(tmp_path / "indexed.csv", out=tmp_path / "out", **options)
    printed = capsys.readouterr().out
    assert printed.startswith("warning: column 'Unnamed: 0' has no name in its file")
    assert printed.count("has no name in its file") == 1
    assert "warning: no method is better than the control" in printed[printed.index("Who leads") :]


def test_the_report_of_a_folder_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the path of the folder, which is no study of a project; another metric is on a page of its own."""
    monkeypatch.chdir(folder)
    Path("out/report.html").unlink()
    before = {path.name for path in folder.iterdir()}
    records.report("out")
    printed = capsys.readouterr().out
    assert Path("out/report.html").is_file()
    assert "Ditto" in printed
    assert printed.endswith("out/report.html shows everything\n")
    records.report(str(folder / "out"), metric="log_loss")
    assert "out/report-log_loss.html shows everything" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == before
    with pytest.raises(fw.BadInput, match="results/nowhere: there is no such folder of results"):
        records.report("nowhere")
    with pytest.raises(fw.BadInput, match=r"^results/nowhere: there is no such folder of results"):
        records.report("results/nowhere")


def test_rows_of_the_client_are_predicted_alone(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a file with the clients' column. The number of rows is said. Without a row of the client: one line."""
    new = flights(40).drop(columns=["late", "time_hour"])
    new.to_csv(tmp_path / "new.csv", index=False)
    own = new[new["dest"] == "BOS"]
    assert 0 < len(own) < len(new)
    own_data.predict(folder / "out", tmp_path / "new.csv", client="BOS", method="ditto")
    printed = capsys.readouterr()
    answers = pd.read_csv(io.StringIO(printed.out))["prediction"].tolist()
    assert answers == fw.load(folder / "out")["ditto"].predict(own.drop(columns="dest"), "BOS").tolist()
    assert printed.err == (
        "ditto of BOS (as --method says; trained on training rows, not refitted: the rows are not in memory), "
        f"{len(own)} of {len(new)} rows: the others are of other clients\n"
    )
    new[new["dest"] != "BOS"].to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(fw.BadInput, match="column 'dest' has no row of 'BOS', but of such as"):
        own_data.predict(folder / "out", tmp_path / "new.csv", client="BOS", method="ditto")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predictions_of_raw_rows(ending: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One line per row with the probabilities of the classes. Rows have no label, and some have new values."""
    new = flights(40).drop(columns=["late", "dest", "time_hour"]).assign(weather=["rain", "snow"] * 20)
    file = tmp_path / f"new.{ending}"
    new.to_csv(file, index=False) if ending == "csv" else new.to_parquet(file)
    own_data.predict(folder / "out", file, client="BOS", method="ditto")
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert [*table.columns] == ["row", "prediction", "late", "on time"]
    assert table["row"].tolist() == [*range(1, 41)]
    result = fw.load(folder / "out")["ditto"]
    assert table["prediction"].tolist() == result.predict(new, "BOS").tolist()
    own_data.predict(folder / "out", file, client="BOS", method="ditto", seed=1, output=tmp_path / "said.csv")
    answers = pd.read_csv(tmp_path / "said.csv")["late"]
    np.testing.assert_allclose(answers, result.predict_proba(new, "BOS", seed=1)["late"], rtol=1e-4)


UNLIKE: dict[str, Any] = {  # change of the rows -> beginning of the warning
    "nothing": ({}, ""),
    "infinite": ({3: np.inf, 4: -np.inf}, "table: column 'distance' is infinite in 2 of 40 rows, and "),
    "another unit": ({3: -999}, "table: column 'distance' is far from training (mean "),
    "points": (
        dict.fromkeys(range(40), "1.100") | {3: "7"},
        "column 'distance': 1.100 is read as a fraction, but all ",
    ),
    "unknown": ("Rain", "table: column 'weather' has no value that training had ('rain', 'sun'), such as 'Rain'; all"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_rows_unlike_those_of_training_are_named(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Once each, with their count, beside the line that says how the model was trained; rows as in training are not."""
    changed, begins = UNLIKE[case]
    new = flights(40).drop(columns="late").assign(dest="BOS", distance=0.5)
    if isinstance(changed, str):
        new = new.assign(weather=changed)
    else:
        new = new.assign(distance=[changed.get(i, 0.5) for i in range(40)])
    new.to_csv(tmp_path / "new.csv", index=False)
    own_data.predict(folder / "out", tmp_path / "new.csv", client="BOS", method="ditto")
    *warnings, last = capsys.readouterr().err.splitlines()
    assert last.startswith("ditto of BOS ")
    assert [line.startswith(f"warning: {begins}") for line in warnings] == [True] * bool(begins)
    assert case != "another unit" or warnings[0].endswith(") in 1 of 40 rows, such as -999; check its unit")


def test_predictions_of_rows_in_another_encoding(folder: Path, tmp_path: Path) -> None:
    """They are those for the same rows in UTF-8."""
    new, file = flights(40).drop(columns="late").assign(weather=["Föhn", "sun"] * 20), tmp_path / "new.csv"
    for encoding in ("", "cp1252"):
        new.to_csv(file, index=False, encoding=encoding or "utf-8")
        own_data.predict(folder / "out", file, client="BOS", encoding=encoding, output=tmp_path / f"said{encoding}.csv")
    assert (tmp_path / "saidcp1252.csv").read_bytes() == (tmp_path / "said.csv").read_bytes()
    with pytest.raises(fw.BadInput, match="`--encoding` of the command"):
        own_data.predict(folder / "out", file, client="BOS")


@pytest.mark.parametrize("kind", ["points in training", "no points in training", "forecast"])
def test_points_of_new_rows_mean_what_they_meant_in_training(kind: str, tmp_path: Path) -> None:
    """Decimal commas in the file of the training say that points separate thousands in a file without any, too."""
    costs = np.arange(60) * 7 + (800 if kind == "points in training" else 200)
    table = flights(60).assign(cost=[f"{cost:,}".replace(",", ".") for cost in costs])
    new = {"weather": ["rain"] * 4, "distance": 1, "time_hour": [f"2014-01-0{day}" for day in range(1, 5)]}
    settings: dict[str, Any] = {**SETTINGS, "methods": ["local"], "rounds": 1, "seeds": 1, "tune": 0}
    if kind == "forecast":
        table["dest"] = ["BOS", "ORD"] * 30
        settings |= {"label": "cost", "features": ["distance"], "time": "time_hour", "window": 4, "horizon": 2}
    else:
        settings["exclude"] = ["time_hour" if kind == "points in training" else "time_hour,distance"]
    table.fillna(0).to_csv(tmp_path / "old.csv", sep=";", decimal=",", index=False)
    own_data.compare(tmp_path / "old.csv", out=tmp_path / "out", **settings)
    for name, costs_as_text in {"points": "2.080", "none": "2080"}.items():
        rows = pd.DataFrame(new).assign(cost=costs_as_text)
        rows.to_csv(tmp_path / f"{name}.csv", sep=";", index=False)
        own_data.predict(tmp_path / "out", tmp_path / f"{name}.csv", client="BOS", output=tmp_path / f"{name}-said.csv")
    assert (tmp_path / "points-said.csv").read_bytes() == (tmp_path / "none-said.csv").read_bytes()


def test_files_of_the_user_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    """Neither predictions nor a table of the results with the same name replaces them."""
    file = tmp_path / "clients.csv"
    flights(40).to_csv(file, index=False)
    before = file.read_bytes()
    with pytest.raises(fw.BadInput, match=r"--output: .*clients\.csv is the file of the rows"):
        own_data.predict(folder / "out", file, client="BOS", output=tmp_path / "." / "clients.csv")
    with pytest.raises(fw.BadInput, match=r"--out: in .* the results would replace .*clients\.csv"):
        own_data.compare(file, out=tmp_path, **SETTINGS)
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]


def test_the_best_method_is_chosen_by_validation(folder: Path) -> None:
    """Test scores are not used."""
    done = fw.load(folder / "out")
    scores = {name: done[name].select_scores("val")["value"].mean() for name in done.methods}
    assert scores[done.best().name] == max(scores.values())


REFUSED: dict[str, dict[str, Any]] = {
    "no column 'dst'": {"client": "dst"},
    "--shares: '0.5,0.5' must be three numbers": {"shares": "0.5,0.5"},
    "split: 'chronological' needs the time": {"split": "chronological"},
    "'dito' is unknown; did you mean 'ditto'": {"methods": ["dito"]},
    "--set rounds: is not a setting of the training; use --rounds": {"settings": ["rounds=3"]},
    "--set train.rounds: is not a setting of the training; use --rounds": {"settings": ["train.rounds=3"]},
    "--set seeds: is not a setting of the training; use --seeds": {"settings": ["seeds=3"]},
    "--set out: is not a setting of the training; use --out": {"settings": ["out=3"]},
    "--set model: is not a setting of the training; use --model": {"settings": ["model=3"]},
    "--set model.name: is not a setting of the training; use --model": {"settings": ["model.name=gru"]},
    "--set federation: is not a setting of the training; use the argument FILE": {"settings": ["federation=3"]},
    "--set evaluate: is not a setting of the training; use for example evaluate.every=5": {"settings": ["evaluate=3"]},
    "--set train.lr: and lr are the same setting": {"settings": ["lr=1", "train.lr=2"]},
    "--set fedprox.mu: fedprox is not in --methods; add it there": {"settings": ["fedprox.mu=1"]},
    "--set ditto.lamb: 'lamb' is unknown; did you mean 'lam'": {"settings": ["ditto.lamb=1"]},
    "compare(): ditto.lam: 'much' is not a finite number": {"settings": ["ditto.lam=much"]},
    "--set dito.lam: 'dito' is unknown; did you mean 'ditto'": {"settings": ["dito.lam=1"]},
    "--set ditto: is a method; write its settings such as ditto.NAME=VALUE": {"settings": ["ditto=1"]},
    "compare(): lam: is a setting of ditto": {"settings": ["lam=1"]},
    "words.txt is not text in UTF-8 (byte 2); save it as UTF-8": {"text": ["weather=words.txt"]},
    "is not a file of words, and no number of hashes such as 512": {"text": ["weather=\u00b2"]},
    "label: 'dest' is also the column of client": {"label": "dest"},
    "seeds: 1000000000 repetitions are too many": {"seeds": 10**9},
    "--set: 'lr' is not name=value": {"settings": ["lr"]},
    "'mpl' is unknown; did you mean": {"model": "mpl"},
}


def test_a_command_names_no_call_of_python(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its user has called no `compare()`."""
    monkeypatch.chdir(tmp_path)
    wrong = {**SETTINGS, "out": tmp_path / "none", "settings": ["ditto.lam=much"]}
    with pytest.raises(SystemExit, match="2"):
        main.run_command(partial(own_data.compare, folder / "flights.csv", **wrong))
    assert capfd.readouterr().err == "error: ditto.lam: 'much' is not a finite number\n"


def test_a_study_is_looked_for_in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another folder there are no studies to choose from."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fw.BadInput, match=r"^study: 'quick' is unknown, because this folder is not a project .* init"):
        studies.select_study("quick", None, None)


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused(message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is one line, before anything is written."""
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_bytes(b"ab\xff")
    arguments = {**SETTINGS, "out": tmp_path / "none", **REFUSED[message]}
    with pytest.raises(fw.BadInput) as caught:
        own_data.compare(folder / "flights.csv", **arguments)
    assert message in str(caught.value)
    assert str(caught.value).count("compare(): ") < 2
    assert not (tmp_path / "none").exists()
    with pytest.raises(fw.BadInput, match="client: 'JFK' is unknown"):
        own_data.predict(folder / "out", folder / "flights.csv", client="JFK", method="ditto")


def test_the_count_of_methods_is_that_of_the_list() -> None:
    """The list has a header, and a row for each method."""
    with pytest.raises(fw.BadInput, match="choices: train, model, evaluate, and a method, of which all") as caught:
        own_data.split_settings(["dito.lam=1"])
    assert f"all {len(listing.methods()) - 1} are listed by: fedweave list methods" in str(caught.value)


def test_options_of_set_change_the_block_that_they_name() -> None:
    """Settings of the training have no prefix, or the prefix of their block."""
    settings = ["lr=0.1", "train.epochs=2", "model.hidden=32", "evaluate.every=5", "evaluate.select=last"]
    chosen = own_data.split_settings([*settings, "ditto.lam=0.5"], "f1")
    assert chosen.train == {"lr": 0.1, "epochs": 2, "metric": "f1"}
    assert (chosen.model, chosen.evaluate) == ({"hidden": 32}, {"every": 5, "select": "last"})
    assert chosen.methods == {"ditto": {"lam": 0.5}}


def test_settings_of_methods(folder: Path, tmp_path: Path) -> None:
    """`--set METHOD.NAME=VALUE` changes a setting of one method. The other methods keep theirs. A margin is stored."""
    settings = {**SETTINGS, "methods": ["local,ditto"], "settings": ["ditto.lam=0.25"], "seeds": 1, "rounds": 2}
    own_data.compare(folder / "flights.csv", **settings, margin="2 %", out=tmp_path / "out", tune=0)
    done = fw.load(tmp_path / "out")
    assert [margin.share for margin in done.study.margins.values()] == [0.02]
    assert done["ditto"].run.info["spec"]["method"]["lam"] == 0.25
    assert "lam" not in done["local"].run.info["spec"]["method"]


def test_margins_on_the_command_line() -> None:
    """A number, a share, or nothing; other texts are refused by `fw.compare`, which names them."""
    assert [own_data.read_margin(text) for text in ("", "0.5", "5 %", "much")] == [None, 0.5, "5 %", "much"]


def test_settings_of_evaluation_reach_a_comparison(folder: Path, tmp_path: Path) -> None:
    """Every second round is evaluated. A race refuses this setting."""
    settings = {**SETTINGS, "methods": ["local"], "settings": ["evaluate.every=2"], "seeds": 1, "rounds": 4}
    own_data.compare(folder / "flights.csv", **settings, out=tmp_path / "out", tune=0)
    assert {*fw.load(tmp_path / "out")["local"].history["round"]} == {2, 4}
    with pytest.raises(fw.BadInput, match=r"--set evaluate\.every: a race sets its evaluation itself"):
        recommend.recommend(
            folder / "flights.csv", client="dest", label="late", out=tmp_path / "no", settings=["evaluate.every=2"]
        )


def test_what_the_report_deploys_predicts(tmp_path: Path) -> None:
    """Also where another method is better on validation rows; a method that is named comes first."""
    out = write_study(tmp_path / "results" / "s", {"shoulder": ARMS}, clients=20, rounds=8, extras=False)
    made = fw.load(out)
    labels = {run.label: name for name, run in made.runs.items()}
    result, why = own_data.load_result(out, "", None, made.clients[0])
    assert (result.name, why) == (labels[made.answers.method], "as the report says")
    other = next(name for name in made.runs if name != result.name)
    result, why = own_data.load_result(out, other, None, made.clients[0])
    assert (result.name, why) == (other, "as --method says")


def test_without_a_verdict_the_best_by_validation_predicts(tmp_path: Path) -> None:
    """One seed gives no verdict, so the report names nothing."""
    out = write_study(tmp_path / "results" / "s", {"shoulder": ARMS}, seeds=(0,), clients=20, rounds=8, extras=False)
    made = fw.load(out)
    assert not made.answers.method
    result, why = own_data.load_result(out, "", None, made.clients[0])
    assert (result.name, why) == (made.best().name, "which has the best validation score")
