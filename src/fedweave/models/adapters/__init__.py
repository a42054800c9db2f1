"""Adapters: what clients train of a model besides its head, while all the rest is frozen.

`Lora` adds matrices of low rank to weights (Hu et al., ICLR 2022, arXiv:2106.09685), `Bias` trains the biases (BitFit,
Ben Zaken et al., ACL 2022, arXiv:2106.10199), `Norm` the normalisation layers, and `Head` the head alone.
"""

from fedweave.models.adapters.kinds import ADAPTERS, Bias, Block, Head, Lora, Norm, TrainedPart, insert, parse
from fedweave.models.adapters.low_rank import LowRank, low_ranks, merge
