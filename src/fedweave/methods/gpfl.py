"""GPFL, generic and personalized features (Zhang et al., ICCV 2023, arXiv:2308.10279).

Server keeps body B, category embeddings E [C, D] and a conditional valve V, and averages them; the head H stays with
the client (2|B| + 2|E| + 2|V|). V(z, c) = ReLU(z ⊙ (1 + γ(c)) + β(c)), γ and β a linear layer, ReLU and LayerNorm each.
With z = B(x), g the mean of the received embeddings and p_i their mean by the client's shares of the classes, z_G =
V(z, g) and z_P = V(z, p_i), fixed g and p_i, the loss of a row is CE(H(z_P), y) − log softmax_y(cos(z_G, E)) +
λ ‖z_G − Ē_y‖ + (μ/2) ‖(E, V)‖², Ē the embeddings as received. The prediction is H(z_P).

Deviations from TsingZ0/PFLlib:
1. g and p_i are of the received embeddings, as in the paper; the code takes those of the client's last ones, and zeros
   until it has received some.
2. The norm is of each row; the code takes one norm of all rows of a batch.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.task import RowLosses
from fedweave.engine.protocol import ClientState, Start, Update, init_parameters
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.heads import classify, head_shape, one_hot
from fedweave.settings import LogSpace, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

CATEGORIES, PREFIX = "gpfl/categories.weight", "gpfl/"


@method("gpfl")
@dataclass(frozen=True, kw_only=True)
class GPFL(GlobalModel):
    """Features that are guided by shared embeddings of the classes, and valves for generic and personal ones."""

    lam: Annotated[Weight, LogSpace(0.0001, 1), "λ, weight of the distance to the received embeddings"] = 0.01
    mu: Annotated[Weight, LogSpace(0.0001, 0.1), "μ, weight decay of the embeddings and the valve"] = 0.001

    label = "GPFL"
    point = "pre"
    needs = frozenset({"classes"})

    @property
    def local_names(self) -> tuple[str, ...]:
        return (*self.task.head, *self.statistics)

    def extras(self, start: Start) -> Params:
        classes, width = head_shape(self.task)

        def branch() -> nn.Module:
            return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))

        def build() -> nn.Module:
            return nn.ModuleDict({"categories": nn.Embedding(classes, width), "gamma": branch(), "beta": branch()})

        drawn = init_parameters(build, start.seed, next(iter(start.model.values())).dtype)
        return {f"{PREFIX}{name}": value for name, value in drawn.items()}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        guides = [name for name in shared if name.startswith(PREFIX)]
        losses = self._losses(shared, data)
        model = {**shared, **client}
        fit = self.descend(model, data, (*self.task.params, *guides), loss=self.task.objective(data, losses))
        trained = {"model": fit.model, "context": _contexts(shared[CATEGORIES], self._shares(data))[1]}
        return self.split_update(fit)._replace(model=trained)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        return {"model": {**shared, **client}, "context": _contexts(shared[CATEGORIES], self._shares(data))[1]}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        network = model["model"]
        z = self.task.features(trees.select(network, self.task.names), data, rows)
        return classify(self.task, network, _valve(network, z, model["context"]))

    def _shares(self, data: ClientData) -> Tensor:
        """Shares of the classes [C] in the client's training rows."""
        counts = one_hot(self.task, data, data.train).sum(0)
        return counts / counts.sum().clamp(min=1)

    def _losses(self, received: Params, data: ClientData) -> RowLosses:
        embeddings = received[CATEGORIES]
        generic, personal = _contexts(embeddings, self._shares(data))

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            network, y = trees.select(model, self.task.names), self.task.targets(data, rows)
            z = self.task.forward(network, data, rows, key, mask, method="features")
            own = self.task.row_loss(classify(self.task, model, _valve(model, z, personal)), y)
            guided = _valve(model, z, generic)
            angles = F.normalize(guided) @ F.normalize(model[CATEGORIES]).T
            angle_loss = -angles.log_softmax(1).gather(1, y[:, None])[:, 0]
            distances = (guided - embeddings[y]).square().sum(1).add(1e-12).sqrt()
            decay = sum(value.square().sum() for name, value in model.items() if name.startswith(PREFIX))
            return own + angle_loss + self.lam * distances + 0.5 * self.mu * decay

        return losses


def _contexts(embeddings: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(g, p_i), each [D], of embeddings [C, D] and a client's shares of the classes [C]."""
    return embeddings.mean(0), shares @ embeddings


def _valve(model: Params, z: Tensor, context: Tensor) -> Tensor:
    """V(z, c) [B, D] of features [B, D] and a context [D]."""

    def branch(name: str) -> Tensor:
        names = ("0.weight", "0.bias", "2.weight", "2.bias")
        weight, bias, scale, shift = (model[f"{PREFIX}{name}.{layer}"] for layer in names)
        return F.layer_norm(F.relu(F.linear(context, weight, bias)), context.shape, scale, shift)

    return F.relu(z * (1 + branch("gamma")) + branch("beta"))
