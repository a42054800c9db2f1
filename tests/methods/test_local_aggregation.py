"""The rows that train W in FedALA and FedAH."""

import numpy as np
import tiny
import torch
from naive import FED, build_method
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.schedule import Training, evaluation_cohort
from fedweave.tensors.trees import Params

WHOLE = Training(batch_size=0, epochs=1)


def client(number: int, round: int) -> ClientData:
    """The data of a client in a round."""
    return evaluation_cohort(FED, 0, round).client_data(number)


def test_w_is_trained_on_consecutive_rows_with_a_random_start() -> None:
    """The portion gives their number. Over the rounds all starts are equally likely."""
    for portion in (1.0, 40.0, 80.0, 100.0):
        method = build_method("fedala", portion=portion, training=WHOLE)
        for i in range(tiny.CLIENTS):
            rows = FED.train[i][FED.train[i] >= 0]
            count = max(1, int(portion / 100 * len(rows)))
            stretches = len(rows) - count + 1
            begins = torch.zeros(stretches)
            for r in range(60 * stretches):
                (batch,) = method._batches(client(i, r))
                start = int((rows == batch[0]).nonzero())
                assert torch.equal(batch, rows[start : start + count])
                begins[start] += 1
            assert ((begins - 60).abs() < 4.5 * 60**0.5).all()


def test_the_first_training_ends_when_ten_losses_are_similar() -> None:
    """After at least eleven epochs, as soon as the standard deviation of the last ten losses is below the threshold."""
    losses = [float(loss) for loss in (*range(14, 0, -1), *[1, 3] * 13)]
    ends = []
    for threshold in (0.0, 0.98, 2.0, 100.0):
        method, epochs = build_method("fedala", start_epochs=40, threshold=threshold), []

        def one_epoch(weights: Params, epoch: int, epochs: list[int] = epochs) -> tuple[Params, Tensor]:
            epochs.append(epoch)
            return {"w": weights["w"] + 1.0}, torch.tensor(losses[epoch])

        trained = method._train_weights({"w": torch.zeros(())}, torch.tensor(False), one_epoch)
        settled = (n for n in range(11, 40) if np.std(losses[n - 10 : n]) < threshold)
        ends.append(next(settled, 40))
        assert len(epochs) == float(trained["w"]) == ends[-1]
    assert len({*ends}) == 4


def test_the_first_training_of_w_is_the_one_where_models_differ() -> None:
    """A client whose model is the global one learns nothing, and its first training is still to come."""
    method = build_method("fedala")
    model, data = method.task.init(0), client(0, 1)
    state = method.join(model)
    other = {**model, "fc.bias": model["fc.bias"] + 1.0}
    for shared, started in ((model, False), (other, True)):
        start, _, is_started = method._aggregate_locally(shared, state, data)
        assert bool(is_started) == started
        assert all(torch.equal(start[name], value) for name, value in model.items()) != started
