"""The answer in sentences, which claim no more than the tests show."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.recommendation import answers as kinds
from fedweave.recommendation import per_client
from fedweave.recommendation.answers import NO_VERDICT, Answers
from fedweave.report.answers import UNDER_TRAINED
from fedweave.results import statistics
from fedweave.results.formats import describe_change, format_change_interval
from fedweave.results.marks import NOTHING_SHOWN, reason_without_verdict
from fedweave.results.verdicts import join_names

MAX_NAMES = 8  # clients that a sentence names


class Line(NamedTuple):
    """One line: what it is about, and its text."""

    topic: str
    text: str


def lines(
    answer: Answers,
    metric: str,
    higher_is_better: bool,
    rows: pd.DataFrame,
    slope: Sequence[float],
    control: str = "",
    under_trained: str = "",
) -> list[Line]:
    """The recommendation in words: the best method, after a `control` that is better, whether collaboration pays, and
    what to deploy; then the rest.

    Args:
        under_trained: why the scores say nothing about collaboration; empty if they do. Without it, the lines
            say what is gained by what is deployed, and at what cost.
    """
    deploy, benefit = deployment(answer), collaboration_benefit(answer, metric)
    if under_trained:
        deploy = "Nothing yet, as the methods are under-trained."
        benefit = f"{UNDER_TRAINED}: {under_trained}."
    first = answer.board.iloc[0]  # best validation first
    best = f"{first['label']} is best on validation rows" if np.isfinite(first["validation"]) else ""
    parts = filter(None, [_capitalise(control), best])
    gains = [
        Line("For each client", client_gains(answer)),
        Line("A choice for each client", choice_gain(answer, metric)),
        Line("Equivalent to the best", equal_methods(answer, metric, higher_is_better)),
        Line("Cost", cost(answer)),
    ]
    sentences = [
        Line("Best", ("; ".join(parts) + ".").removeprefix(".")),
        Line("Does collaboration pay?", benefit),
        Line("Deploy", deploy),
        *(gains if not under_trained else ()),
        Line("Who learns from whom", structure(answer, metric)),
        Line("More rounds", more_rounds(slope, metric, higher_is_better)),
        Line("More data", more_data(rows, metric, higher_is_better)),
    ]
    return [line for line in sentences if line.text]


def deployment(answer: Answers) -> str:
    """What to deploy, in one sentence."""
    row = answer.board.set_index("method").loc[answer.method]
    label = f"{row['label']} ({row['settings']})" if row["settings"] else str(row["label"])
    local_clients = answer.local_clients.get(answer.method, [])
    verb = "keeps" if len(local_clients) == 1 else "keep"
    exception = f", except for {list_names(local_clients)}, which {verb} to local training" if local_clients else ""
    if answer.kind == kinds.LOCAL:
        verdicts = [test.verdict for test in answer.tests_against_local.values()]
        is_possible = any(verdicts) or not verdicts
        reason = "no method is shown to be better" if is_possible else "no verdict on other methods is possible"
        return f"Each client keeps a model of its own, trained alone ({label}): {reason}."
    if answer.kind == kinds.COMMON:
        return f"One common model for all clients, trained with {label}{exception}."
    if answer.kind == kinds.GROUPS:
        groups = format_count(len(answer.members), "group")
        return f"A model for each client, trained with {label}, which learns within {groups}{exception}."
    return f"A personal model for each client, trained with {label}{exception}."


def collaboration_benefit(answer: Answers, metric: str) -> str:
    """Whether a collaborating method is better than local training: the best one, or another where that is not."""
    method = answer.pays or answer.leader
    test = answer.tests_against_local.get(method)
    if test is None:
        return ""
    own = list_names(answer.local_clients.get(method, []))
    exception = f", with local training for {own} (chosen on validation rows)," if own else ""
    numbers = (
        f"{_label(answer, method)}{exception} against Local: {describe_change(test.difference, metric)} "
        f"({_format_interval(test.low, test.high, metric)}{_format_p(test.p_adjusted, 'corrected p')})"
    )
    if test.verdict == statistics.BETTER:
        is_leader = method == answer.leader
        other = "" if is_leader else f" {_label(answer, answer.leader)}, best on validation rows, is not shown to be."
        return f"Yes. {numbers}.{other}"
    if test.verdict == statistics.WORSE:
        return f"No, it does harm. {numbers}."
    if test.verdict == statistics.EQUIVALENT:
        return f"No: equivalent{_within(answer)}. {numbers}."
    if test.verdict == statistics.OPEN:
        return f"Open: neither a difference nor equivalence{_within(answer)} is shown. {numbers}.{_advice(test)}"
    return f"{_capitalise(reason_without_verdict(test.over))}. {numbers}."


def _within(answer: Answers) -> str:
    """The margin of equivalence, if there is one."""
    return "" if answer.margin == "none" else f" within {answer.margin}"


def _advice(test: statistics.TestedPair) -> str:
    """What would decide an open comparison."""
    if np.isfinite(test.seeds_needed):
        return f" {format_count(int(test.seeds_needed), 'seed')} would decide at the variance seen."
    return " More seeds alone would not decide; more clients may."


def _capitalise(text: str) -> str:
    """A text as the beginning of a sentence; unlike `str.capitalize`, names in it keep their capitals."""
    return text[:1].upper() + text[1:]


def choice_gain(answer: Answers, metric: str) -> str:
    """Which clients would deploy another finalist, and what that gains over one method for all."""
    if len(answer.board) < 2:
        return ""
    if answer.choice_test is None:
        return "No client would deploy another finalist, by its validation rows."
    methods = {name: [c for c, method in answer.choices.items() if method == name] for name in answer.choices.values()}
    parts = [f"{_label(answer, name)} ({list_names(clients)})" for name, clients in methods.items()]
    test = answer.choice_test
    verdict = {
        statistics.BETTER: "that is better than one method for all",
        statistics.WORSE: "that is worse than one method for all",
        statistics.EQUIVALENT: f"that is equivalent to one method for all{_within(answer)}",
        statistics.OPEN: "whether that is better than one method for all is open",
    }.get(test.verdict, "there is no verdict on that")
    numbers = (
        f"{describe_change(test.difference, metric)}, {_format_interval(test.low, test.high, metric)}"
        f"{_format_p(test.p_adjusted)}"
    )
    return f"By their validation rows, some would deploy {join_names(parts)}; on test rows {verdict} ({numbers})."


def client_gains(answer: Answers) -> str:
    """How many clients gain and who loses: by what is deployed, and by one common model if that differs."""
    methods = [answer.method if answer.kind != kinds.LOCAL else answer.leader]
    common = [*answer.board.loc[answer.board["models"] == 1, "method"]]
    methods += [name for name in common[:1] if name not in methods]
    return " ".join(_counts(answer, name) for name in methods if (answer.clients["method"] == name).any())


def _counts(answer: Answers, method: str) -> str:
    rows = answer.clients[answer.clients["method"] == method]
    losing = [str(name) for name in rows[rows["verdict"] == per_client.LOSES]["client"]]
    total, gaining = len(rows), int((rows["verdict"] == per_client.GAINS).sum())
    gains = f"{gaining} of {format_count(total, 'client')} {'is' if 1 in (gaining, total) else 'are'} shown to gain"
    verb = "loses" if len(losing) == 1 else "lose"
    losers = f"{len(losing)} {verb}: {list_names(losing)}" if losing else "none is shown to lose"
    return f"With {_label(answer, method)} {gains} over Local; {losers}."


def equal_methods(answer: Answers, metric: str, higher_is_better: bool) -> str:
    """The collaborating methods that are equivalent to the best one, better or open; the cheapest to deploy."""
    board = answer.board[answer.board["method"] != answer.local_name]
    leader = board[board["method"] == answer.leader]
    if leader.empty or not np.isfinite(leader["validation"].iloc[0]):
        return "No collaborating method reached a finite score."
    first = f"Of the methods that collaborate, {_label(answer, answer.leader)} is best on validation rows"
    words = {
        statistics.BETTER: "Better on test rows",
        statistics.EQUIVALENT: f"Equivalent on test rows{_within(answer)}",
        statistics.OPEN: f"Open, as {NOTHING_SHOWN}",
        NO_VERDICT: "No verdict",
    }
    labels = {word: [*board[board["verdict"] == verdict]["label"]] for verdict, word in words.items()}
    found = {word: names for word, names in labels.items() if names}
    if not found:
        return f"{first}; every other one is worse on test rows." if len(board) > 1 else f"{first}."
    parts = [f"{first}.", *(f"{word}: {join_names(names)}." for word, names in found.items())]
    if answer.pays not in ("", answer.leader):
        return " ".join(parts)  # a method that is better than Local is recommended in its place, whatever it costs
    return " ".join([*parts, *_cheapest_sentence(answer, metric, higher_is_better)])


def _cheapest_sentence(answer: Answers, metric: str, higher_is_better: bool) -> Iterable[str]:
    """The cheapest method that may be deployed, with its own test against local training."""
    deployable = kinds.deployable_methods(answer.board, answer.local_name, higher_is_better)
    if deployable.empty:
        return
    row = deployable.set_index("method").loc[kinds.cheapest_method(deployable)]
    test_text = (
        f": {describe_change(row['over_local'], metric)}{_format_p(row['p_local'], 'corrected p')}, against Local"
        if np.isfinite(row["over_local"])
        else ""
    )
    yield f"The cheapest of those with a score that is not below Local's is {row['label']}{test_text}."


def _format_p(p: float, name: str = "p") -> str:
    """The p of a test, if there is one; an interval, which is not corrected, may leave out zero all the same."""
    return f", {name} = {p:.2g}" if np.isfinite(p) else ""


def cost(answer: Answers) -> str:
    """Bytes, seconds and memory of what is recommended."""
    row = answer.board.set_index("method").loc[answer.method]
    sent = f"{row['mib']:.3g} MiB" if np.isfinite(row["mib"]) else "uncounted bytes"  # of code from elsewhere
    return (
        f"{row['label']}: {sent} sent in a training, {row['seconds']:.3g} s of computation, "
        f"{row['server_mib']:.3g} MiB at the server, {row['client_mib']:.3g} MiB at a client."
    )


def structure(answer: Answers, metric: str) -> str:
    """The groups of the learned graph, and whether the graph improves scores."""
    if answer.graph is None:
        return ""
    label = _label(answer, answer.graph_method)
    if answer.groups is None:
        text = f"The graph of {label} shows no groups: its weights are not denser within any, or its seeds disagree."
    else:
        groups = "; ".join(map(list_names, answer.members))
        text = f"The graph of {label} shows {format_count(len(answer.members), 'group')}: {groups}."
    return " ".join([text, *_graph_benefit(answer, metric)])


def _graph_benefit(answer: Answers, metric: str) -> Iterable[str]:
    for test in answer.tests:
        words = {
            statistics.BETTER: f"It is better than a {test['graph']} graph",
            statistics.WORSE: f"It is worse than a {test['graph']} graph",
            statistics.EQUIVALENT: f"It is equivalent to a {test['graph']} graph{_within(answer)}",
            statistics.OPEN: f"Whether it is better than a {test['graph']} graph is open",
            NO_VERDICT: f"There is no verdict on it against a {test['graph']} graph",
        }
        yield f"{words[str(test['verdict'])]} ({describe_change(float(test['difference']), metric)})."


def more_rounds(slope: Sequence[float], metric: str, higher_is_better: bool) -> str:
    """Whether validation still rises at the end of training."""
    mean, low, high = slope
    if not np.isfinite(mean):
        return "Too few evaluations say whether more rounds would help."
    interval = _format_interval(low, high, metric)
    change = f"in the last third, ten rounds make {describe_change(mean, metric)} ({interval})"
    return f"{_say_whether('more rounds', 'may', low, high, higher_is_better)}: {change}."


def more_data(rows: pd.DataFrame, metric: str, higher_is_better: bool) -> str:
    """Whether the second half of the training rows helped."""
    half = rows[rows["share"] == 0.5]
    if half.empty or not np.isfinite(half["gain"].iloc[0]):
        return ""
    gain, low, high = (float(half[name].iloc[0]) for name in ("gain", "gain_low", "gain_high"))
    interval = _format_interval(low, high, metric)
    text = f"all training rows against half of them: {describe_change(gain, metric)} ({interval})"
    return f"{_say_whether('more data', 'would probably', low, high, higher_is_better)}: {text}."


def _say_whether(what: str, verb: str, low: float, high: float, higher_is_better: bool) -> str:
    """Whether more of something helps, by the interval of the change."""
    least, most = (low, high) if higher_is_better else (-high, -low)
    if least > 0:
        return f"{what.capitalize()} {verb} help"
    return f"{what.capitalize()} would not help" if most <= 0 else f"It is open whether {what} would help"


def _label(answer: Answers, method: str) -> str:
    return str(answer.board.set_index("method")["label"].get(method, method))


def list_names(names: Sequence[str]) -> str:
    """The names, or the first ones and how many others there are."""
    if len(names) <= MAX_NAMES:
        return join_names(names) if 0 < len(names) <= 6 else ", ".join(names)
    return f"{', '.join(names[: MAX_NAMES - 1])} and {format_count(len(names) - MAX_NAMES + 1, 'other')}"


def _format_interval(low: float, high: float, metric: str) -> str:
    """The interval with its name; one client with one seed has none."""
    if not np.isfinite(low + high):
        return "no interval"
    return f"95 % interval {format_change_interval(low, high, metric)}"
