#!/bin/sh
# peft 0.21.2: the "linear" average of n equal LoRA adapters with weights 1/n is n times the adapter.
#
# Guess: `add_weighted_adapter(names, [1/n] * n, "mean", combination_type="linear")` is the mean of the updates B A of
# n clients. That the mean of B times the mean of A is another thing is known, but it is near as long as the clients
# are near each other, and exact where they are equal.
# What happens: A and B are each summed with the square roots of the weights, so that their product has terms of all
# pairs of clients. Of equal clients these add up to n times the update: averaging what nobody changed multiplies it
# by n, and a server that does so multiplies it in each round. The nearer the clients, the greater the factor; for
# unrelated ones it is about 1, with noise as large as the update of one client. A test with one adapter does not show
# it. "cat" is exact.
# Output seen: "mean of n equal adapters, in adapters: n=2 2.0, n=5 5.0, n=10 10.0; cat: 1.0, 1.0, 1.0; mean of B
# times mean of A: 1.0, 1.0, 1.0".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" peft==0.21.2 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from peft import LoraConfig, get_peft_model

torch.manual_seed(0)
config = LoraConfig(target_modules=["0"], r=2, init_lora_weights=False)  # random B: an adapter that has been trained


def size(count, kind):
    """The length of the mean of `count` equal adapters, and of the product of the means of B and A, in adapters."""
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 8)), config, adapter_name="client 0")
    layer, names = model.base_model.model[0], [f"client {i}" for i in range(count)]
    for name in names[1:]:
        model.add_adapter(name, config)
        layer.lora_A[name].load_state_dict(layer.lora_A["client 0"].state_dict())
        layer.lora_B[name].load_state_dict(layer.lora_B["client 0"].state_dict())
    model.add_weighted_adapter(names, [1 / count] * count, "mean", combination_type=kind)
    means = [torch.stack([part[name].weight for name in names]).mean(0) for part in (layer.lora_B, layer.lora_A)]
    update = layer.get_delta_weight("client 0")
    product = means[0] @ means[1] * layer.scaling["client 0"]
    return [round((delta.norm() / update.norm()).item(), 3) for delta in (layer.get_delta_weight("mean"), product)]


counts = [2, 5, 10]
linear, cat = ([size(count, kind) for count in counts] for kind in ("linear", "cat"))
shown = ", ".join(f"n={n} {own}" for n, (own, _) in zip(counts, linear))
print(f"mean of n equal adapters, in adapters: {shown}; cat: {', '.join(str(own) for own, _ in cat)};",
      f"mean of B times mean of A: {', '.join(str(product) for _, product in linear)}")
assert linear == [[float(n), 1.0] for n in counts] and all(both == [1.0, 1.0] for both in cat)
END
