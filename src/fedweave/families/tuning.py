"""Fine-tuning of a model on a client's own training rows when it is deployed, outside of the rounds of training."""

from collections.abc import Iterable
from dataclasses import replace

from fedweave.client.data import ClientData, shuffled_batches
from fedweave.engine.protocol import Method
from fedweave.tensors import dropout_keys
from fedweave.tensors.trees import Params, is_mapped

TUNING = 3  # number of a random stream of the client's key


def fine_tune(method: Method, model: Params, names: Iterable[str], epochs: int, data: ClientData) -> Params:
    """`model` after `epochs` epochs of the method's solver, with a new state, on its parameters `names`.

    An epoch passes over the client's training rows in batches of the size of training, in an order by its key.
    """
    tuning_data = replace(data, key=dropout_keys.fold(data.key, TUNING), padded=is_mapped())
    size, drop_last = method.training.batch_size, method.training.drop_last
    plan = [shuffled_batches(tuning_data, size, drop_last, epoch) for epoch in range(epochs)]
    return method.descend(model, replace(tuning_data, plan=plan), tuple(names), epochs=slice(0, epochs)).model
