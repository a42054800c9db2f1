"""Aggregation rules that limit the influence of a few broken or hostile clients.

Sources: coordinate-wise median and trimmed mean of Yin et al., "Byzantine-Robust Distributed Learning" (ICML 2018);
norm clipping of Sun et al., "Can You Really Backdoor Federated Learning?" (arXiv:1911.07963).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.settings import AtLeast, Between
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree
from fedweave.threats.privacy import clip_rows


@dataclass(frozen=True, kw_only=True)
class Robust:
    """The block `train.robust`.

    "median" and "trimmed" take the place of the mean, coordinate by coordinate and without weights, in methods that
    average; "clip" shortens long updates and works with every method that uploads models.
    """

    rule: Annotated[Literal["median", "trimmed", "clip"], "what is done to uploads"]
    trim: Annotated[float, Between(0, 0.5), "share of the clients left out at either end, rounded up"] = 0.1
    bound: Annotated[float | None, AtLeast(1e-12), "longest update that clip admits; null: the round's median"] = None

    @property
    def replaces_mean(self) -> bool:
        """Whether the rule replaces a mean, and so needs a method that takes one."""
        return self.rule != "clip"

    def apply(self, uploads: Tree, downloads: Tree, part: str = "model") -> Tree:
        """`uploads` [P, ...] with robust models.

        Args:
            downloads: [P, ...] what the clients received of these models.
            part: the entry of the uploads that holds the models, see `Method.robust_part`.
        """
        if part not in uploads:
            return uploads
        models, base = uploads[part], downloads[part]
        if self.rule == "clip":
            bound = trees.norms(trees.sub(models, base)).median() if self.bound is None else torch.tensor(self.bound)
            return {**uploads, part: clip_rows(models, base, bound)}
        # Every client's model is replaced by the robust centre: then the weighted mean is this centre.
        return {**uploads, part: trees.tree_map(lambda t: self.centre(t).expand_as(t), models)}

    def centre(self, values: Tensor) -> Tensor:
        """The centre of `values` [P, ...], coordinate by coordinate; of integers, which have no mean, a middle one."""
        ranked, count = values.sort(dim=0).values, len(values)
        cut = (count - 1) // 2 if self.rule == "median" else min(math.ceil(self.trim * count - 1e-9), (count - 1) // 2)
        middle = ranked[cut : count - cut]
        return middle.mean(0) if values.dtype.is_floating_point else middle[(len(middle) - 1) // 2]
