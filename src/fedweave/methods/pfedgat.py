"""pFedGAT (Zhou et al., "Personalized Federated Learning via Learning Dynamic Graphs", arXiv:2503.05474).

Server keeps every client's last model θ_j and a graph attention network on the models themselves: h_i = LayerNorm(flat
θ_i), R = the mean over K heads of softmax_j(LeakyReLU(a · [W h_i ‖ W h_j])), self included; θ̄_i = Σ_j R_ij θ_j goes
down, the trained θ_i comes up. The client also evaluates θ̄_i on held-out rows; W and a take one step on the sum of
those losses.

Deviations:
1. The paper's server back-propagates one scalar per client, which carries no derivative. Here the gradient at θ̄_i
   comes up too (traffic 3P + 1). `gat_grad="simulated"` counts the scalar only and gives the same numbers; "spsa" makes
   do with two scalars for two more models sent down (4P + 2); "delta" reads the gradient off local training (2P).
2. Held out are validation rows. The paper evaluates on test rows, which tunes the server on them: `gat_split="test"`,
   whose results are labelled and never ranked.
3. The loss at θ̄_i is measured when θ̄_i arrives, at the start of the following round.
4. Width of a head and the affine-free layer norm are ours; unstated there.
Within a head LeakyReLU is monotonic, so every client ranks the others equally, and the rows of R are alike. Rows that
are alike need not be uniform. Where they are uniform, the method is FedAvg-FT. With `score="gatv2"` clients may rank
the others differently.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from fedweave.engine.protocol import Start, init_parameters
from fedweave.engine.registry import method
from fedweave.families.networks import Architecture, ModelAttention, architecture, count_sketch, layer_norm
from fedweave.families.validated_mixtures import ValidatedMixtures
from fedweave.settings import Choices, Size
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree


@method("pfedgat")
@dataclass(frozen=True, kw_only=True)
class PFedGAT(ValidatedMixtures):
    """Mixtures from graph attention over the models."""

    heads: Annotated[Size, Choices((1, 4, 8)), "K, heads of the attention"] = 8
    head_width: Annotated[Size, Choices((8, 16, 64)), "width of W h"] = 8
    score: Annotated[Literal["gat", "gatv2"], "form of the additive attention"] = "gat"
    shared: Annotated[bool, "one W for all heads, which keep an a of their own"] = False
    h_scale: Annotated[Literal["none", "rsqrt"], "rsqrt divides h by the root of its length"] = "none"
    features: Annotated[Literal["all", "proj", "layers"], "input: all parameters, a sketch, or dense layers"] = "all"
    sketch: Annotated[Size, "length of the sketch, with features: proj"] = 4096
    last: Annotated[Size, "number of dense layers, with features: layers"] = 2

    label = "pFedGAT"

    def learnables(self, start: Start) -> Tree:
        h = self._attention_input(trees.broadcast(trees.omit(start.model, self.local_names), 1))
        return init_parameters(self._network(h.shape[1]), start.seed, h.dtype)

    def weights(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        h = self._attention_input(fixed["models"])
        return self._network(h.shape[1]).run(phi, h)[ids][None]

    def _attention_input(self, models: Params) -> Tensor:
        """The network's input: models [N, ...] as rows [N, d] of mean 0 and variance 1, possibly reduced by a random
        sketch.
        """
        if self.features == "layers":
            dense = [names for names in self.task.layers.values() if any(models[name].ndim == 3 for name in names)]
            return layer_norm(
                trees.to_matrix(trees.select(models, [name for names in dense[-self.last :] for name in names]))
            )
        rows = layer_norm(trees.to_matrix(models))
        return count_sketch(rows, self.sketch, dropout_keys.key(0).to(rows.device)) if self.features == "proj" else rows

    def _network(self, size: int) -> Architecture:
        options = {"width": self.head_width, "heads": self.heads, "score": self.score, "shared": self.shared}
        return architecture(ModelAttention, size, h_scale=self.h_scale, **options)
