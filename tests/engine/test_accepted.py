"""Which uploads a server accepts if several are invalid, and that it never uses another client's row."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedweave.engine.uploads import UploadPath, accept, deliver, deliver_enrolment, protect_uploads
from fedweave.threats.privacy import Privacy
from fedweave.threats.robust import Robust

NAN = float("nan")
COHORT: Any = SimpleNamespace(
    positions=torch.tensor([0, 2, 3, 4]),
    round=3,
    federation=SimpleNamespace(ids=torch.tensor([10, 11, 12, 13, 14]), attack=None),
)


def upload(value: float, size: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """One client's upload."""
    return {"w": torch.full((size,), value, dtype=dtype)}


@pytest.mark.parametrize(
    ("private", "rows"), [([0.0, NAN, 0.0, 0.0, 0.0, 0.0], [0, 3, 5]), ([0.0, 0.0, 0.0, NAN, 0.0, 0.0], [0, 5])]
)
def test_accepted_rows_belong_to_their_senders(private: list[float], rows: list[int]) -> None:
    """One upload has another shape, one is not finite, one has another type, and one client has diverged."""
    sent = [upload(0.0), upload(1.0, size=3), upload(NAN), upload(3.0), upload(4.0, dtype=torch.float64), upload(5.0)]
    delivery = accept(sent, {"w": torch.zeros(6, 2)}, {"own": torch.tensor(private)}, 6)
    assert delivery.rows.tolist() == rows
    assert delivery.uploads["w"][:, 0].tolist() == rows


def test_a_defence_measures_each_update_from_the_senders_download() -> None:
    """Short updates are not clipped, although the first upload was dropped."""
    start = torch.tensor([[0.0], [100.0], [200.0], [300.0]])
    sent = start + 0.5
    sent[0] = NAN
    delivery = deliver(
        {"model": {"w": sent}}, {}, lambda: {"model": {"w": start}}, COHORT, 0, Robust(rule="clip", bound=1.0)
    )
    assert delivery.rows.tolist() == [1, 2, 3]
    torch.testing.assert_close(delivery.uploads["model"]["w"], sent[1:])


def test_noise_depends_on_the_client_and_not_on_its_position() -> None:
    privacy, start = Privacy(clip=1.0, noise=1.0), {"w": torch.zeros(4, 3)}
    noisy = protect_uploads(start, lambda: start, COHORT, 5, privacy)
    expected = privacy.protect(start, start, torch.tensor([10, 12, 13, 14]), 5, 3)
    assert torch.equal(noisy["w"], expected["w"])


def test_uploads_on_joining_are_clipped_from_zero() -> None:
    enrolled = {"w": torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-30.0, 0.0]])}
    path = UploadPath(privacy=Privacy(clip=1.0, noise=1e-9))
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(deliver_enrolment(enrolled, COHORT, 0, path)["w"], expected)
