"""Initial parameters are a function of their seed and do not change the caller's own draws."""

import torch

from fedweave.tensors.seeding import use_seed


def test_draws_depend_on_the_seed_and_the_callers_draws_continue() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(7)
    first, rest = torch.rand(2), torch.rand(2)
    torch.manual_seed(7)
    before = torch.rand(2)
    with use_seed(3):
        drawn = torch.rand(4)
    assert torch.equal(before, first)
    assert torch.equal(drawn, expected)
    assert torch.equal(torch.rand(2), rest)
