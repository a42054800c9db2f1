"""Models of one's own that look up codes: padding, bags, and codes that must not be scaled."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedweave as fw
from fedweave.models import MODELS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(0)
CODES = DRAWS.integers(1, 20, size=(160, 6))
CODES[80:, 3:] = 0  # padding, in rows behind those on which a model is tried
CLIENT = [*"abcd"] * 40
LABELS = (CODES[:, 0] > 10).astype(int)
PARTS = np.repeat(["train", "val", "test"] * 2, [40, 20, 20] * 2)  # both halves in each part


def codes(**options: Any) -> fw.Federation:
    return fw.Federation.from_arrays(CODES, LABELS, client=CLIENT, split=PARTS, **options)


class Mean(nn.Module):
    """The mean of the vectors of a row's codes."""

    def __init__(self, shape: tuple[int, ...], outputs: int, table: nn.Module | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4, padding_idx=0) if table is None else table
        self.top = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.table(x.flatten(1).long())
        return self.top(vectors if vectors.ndim == 2 else vectors.mean(1))


def bag(shape: tuple[int, ...], outputs: int) -> Mean:
    return Mean(shape, outputs, nn.EmbeddingBag(20, 4, padding_idx=0))


@pytest.mark.parametrize("executor", ["loop", "batched", "kernel"])
@pytest.mark.parametrize("model", [Mean, bag])
def test_the_vector_of_padding_is_not_trained(model: Any, executor: str) -> None:
    """As PyTorch has it, for every client; the gradient of `F.embedding` has it under vmap."""
    run = fw.fit("local", codes(normalize="none"), model=model, rounds=3, lr=1.0, executor=executor, progress=False)
    for trained in run.models().values():
        assert trained["table.weight"][0].abs().sum() == 0
        assert (trained["table.weight"][1:].abs().sum(1) > 0).all()


def test_executors_agree_on_rows_with_padding() -> None:
    scores = [
        fw.fit("fedavg", codes(normalize="none"), model=Mean, rounds=3, lr=1.0, executor=executor, progress=False)
        for executor in ("loop", "batched")
    ]
    for name, value in scores[0].models()["d"].items():
        torch.testing.assert_close(scores[1].models()["d"][name], value)


def test_a_client_model_with_a_name_keeps_its_padding_too() -> None:
    @fw.model("padded_mean")
    class PaddedMean(fw.models.ClientModel):
        """The mean of the vectors of a row's codes."""

        head = ("top",)

        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            self.table, self.top = nn.Embedding(20, 4, padding_idx=0), nn.Linear(4, outputs)

        def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
            return self.table(x.flatten(1).long()).mean(1)

    federation = codes(normalize="none")
    run = fw.fit("local", federation, model="padded_mean", rounds=2, lr=1.0, executor="batched", progress=False)
    assert all(trained["table.weight"][0].abs().sum() == 0 for trained in run.models().values())
    del MODELS["padded_mean"]


def test_codes_that_are_scaled_are_refused_before_any_work() -> None:
    """The rows on which a model is tried are scaled as in training, by the default of arrays."""
    words = r"codes that it looks up need Federation\.from_arrays\(\.\.\., normalize='none'\)"
    with pytest.raises(fw.BadInput, match=words):
        fw.compare(codes(), ["local"], model=Mean, rounds=1, seeds=1, progress=False)
    with pytest.raises(fw.BadInput, match=words):
        fw.compare(codes(normalize="standard_client"), ["local"], model=Mean, rounds=1, seeds=1, progress=False)


@pytest.mark.parametrize(("code", "executor"), [(20, "batched"), (-1, "batched"), (20, "loop")])
def test_codes_without_a_vector_are_refused_before_any_work(code: int, executor: str) -> None:
    """Under vmap, a code behind the last one is the first of another client."""
    wrong = CODES.copy()
    wrong[130, 2] = code
    federation = fw.Federation.from_arrays(wrong, LABELS, client=CLIENT, split=PARTS, normalize="none")
    for model in (Mean, lambda shape, outputs: Mean(shape, outputs, nn.EmbeddingBag(20, 4))):
        with pytest.raises(fw.BadInput, match=rf"'table\.weight' has vectors for the codes 0 to 19, but gets {code};"):
            fw.fit("fedavg", federation, model=model, rounds=1, executor=executor, progress=False)


def test_codes_of_newcomers_and_new_rows_are_looked_at_too() -> None:
    run = fw.fit("fedavg", codes(normalize="none"), model=Mean, rounds=1, executor="batched", progress=False)
    wrong = CODES[:40].copy()
    wrong[9, 0] = 20
    with pytest.raises(fw.BadInput, match=r"'table\.weight' has vectors for the codes 0 to 19, but gets 20"):
        run.join(wrong, client=["e"] * 40, label=LABELS[:40], split="stratified", rounds=1)
    with pytest.raises(fw.BadInput, match="x: the model has no entry for a value of these rows"):
        run.predict(wrong, "a")


def test_positions_are_no_codes_of_rows() -> None:
    """A table that the model reads by numbers of its own, beside rows that are scaled; called twice in a pass."""

    class Positions(Mean):
        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(6).expand(len(x), 6)
            return self.top((self.table(places) * x.flatten(1)[..., None] + self.table(places + 1)).mean(1))

    assert fw.fit("local", codes(), model=Positions, rounds=1, progress=False).scores.notna().all()


def test_tables_that_a_function_reads_are_looked_at_too() -> None:
    class Tied(Mean):
        """Codes are looked up by the function itself, whose padding vector would be trained."""

        padding: int | None = None

        def forward(self, x: Tensor) -> Tensor:
            vectors = nn.functional.embedding(x.flatten(1).long(), self.table.weight, padding_idx=self.padding)
            return self.top(vectors.mean(1))

    class Padded(Tied):
        padding = 0

    wrong = fw.Federation.from_arrays(CODES + 1, LABELS, client=CLIENT, split=PARTS, normalize="none")
    assert CODES.max() == 19
    with pytest.raises(fw.BadInput, match=r"the table 'table\.weight' has vectors for the codes 0 to 19, but gets 20;"):
        fw.fit("fedavg", wrong, model=Tied, rounds=1, progress=False)
    with pytest.raises(fw.BadInput, match=r"F\.embedding with padding_idx trains .*; use nn\.Embedding with"):
        fw.fit("fedavg", codes(normalize="none"), model=Padded, rounds=1, progress=False)
    fw.fit("fedavg", codes(normalize="none"), model=Tied, rounds=1, progress=False)


def test_gradients_by_frequency_are_refused() -> None:
    """Rows of padding in a batch would count."""
    with pytest.raises(fw.BadInput, match="table: Embedding with scale_grad_by_freq=True counts codes of padded rows"):
        fw.fit(
            "local",
            codes(normalize="none"),
            model=lambda shape, outputs: Mean(shape, outputs, nn.Embedding(20, 4, scale_grad_by_freq=True)),
            rounds=1,
            progress=False,
        )
