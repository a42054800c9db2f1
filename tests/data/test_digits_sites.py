"""The sites of the study `adapters`: their digits, and the network that has read other digits."""

import numpy as np
import torch
from safetensors.torch import load_file

from fedweave import data
from fedweave.data.sources.digits import public_digits
from fedweave.models import build
from tools import digits_body


def test_half_of_the_sites_turn_the_page() -> None:
    """The rows are the digits 5 to 9, each once; of the sites with odd numbers, turned by 180 degrees."""
    sites, whole = data.load("digits-sites", "unused"), data.load("digits", "unused")
    turned = sites.group[sites.owner] == 1
    assert [sites.group_names[group] for group in sites.group] == ["upright", "turned"] * 8
    back = np.where(turned[:, None, None, None], sites.x[:, :, ::-1, ::-1], sites.x)
    assert (back == whole.x[whole.y >= 5]).all()
    assert (sites.y + 5 == whole.y[whole.y >= 5]).all()
    assert [*sites.class_names] == ["5", "6", "7", "8", "9"]


def test_the_file_is_of_the_command_and_has_read_the_other_digits() -> None:
    """Trained again, it differs by rounding; with a head on top of it the network reads the public digits."""
    again, file = digits_body.train(), load_file(digits_body.FILE)
    assert {*file} == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    for name, value in file.items():
        torch.testing.assert_close(value, again.state_dict()[name], rtol=0, atol=1e-2)
    x, y = map(torch.from_numpy, public_digits())
    assert {*y.tolist()} == {0, 1, 2, 3, 4}
    network = build("mlp", (1, 8, 8), 5, hidden=digits_body.HIDDEN, weights=str(digits_body.FILE))
    assert torch.equal(network.fc2.weight, file["fc2.weight"])
    with torch.no_grad():
        outputs = again.classify(network.features(x))
    assert (outputs.argmax(1) == y).float().mean() > 0.99
