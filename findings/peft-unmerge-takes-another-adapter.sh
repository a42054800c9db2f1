#!/bin/sh
# peft 0.21.2: a round that merges an adapter, receives the next one and unmerges leaves a spoiled frozen weight.
#
# Guess: `merge_adapter` and `unmerge_adapter` are a pair: the base has its old weight afterwards, or peft refuses or
# warns. It knows that the adapter is merged.
# What happens: loading an adapter into a merged model is accepted and has no effect on the output. `unmerge_adapter`
# then subtracts the product of the weights that lie there now, not of those that were added. The base keeps the
# difference of the two adapters for good, and each round adds one. Evaluation with a merged model in between is
# enough.
# Output seen: "after the load the output is as before: True; base moved: 20.4" (the size depends on the weights).
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" peft==0.21.2 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

torch.manual_seed(0)
base = torch.nn.Sequential(torch.nn.Linear(8, 8))
weight, x = base[0].weight.detach().clone(), torch.ones(1, 8)
model = get_peft_model(base, LoraConfig(target_modules=["0"], r=2)).eval()


def receive():
    adapter = {name: torch.randn_like(value) for name, value in get_peft_model_state_dict(model).items()}
    set_peft_model_state_dict(model, adapter)


receive()
model.merge_adapter()
before = model(x)
receive()
same = torch.equal(model(x), before)
model.unmerge_adapter()
moved = (model.base_model.model[0].base_layer.weight - weight).abs().max().item()
print(f"after the load the output is as before: {same}; base moved: {moved:.1f}")
assert same and moved > 0.1
END
