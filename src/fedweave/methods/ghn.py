"""GHN: the graph hypernetwork baseline of Sheaf HyperNetworks.

Two stages (see `GraphHypernetwork`): pFedHN learns a vector per client; on their graph, L graph convolutions (Kipf and
Welling, arXiv:1609.02907) turn them into the codes of a new hypernetwork, which is trained as pFedHN is. Everything but
the models stays on the server (traffic 2P).

Deviation: there is no public code; the convolutions are H ← ELU(Â H W + b), Â with self loops, the last one linear,
without residual connections, so that depth over-smooths as in the paper.
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families.hypernetworks import GraphHypernetwork


@method("ghn")
@dataclass(frozen=True, kw_only=True)
class GHN(GraphHypernetwork):
    """Hypernetwork behind graph convolutions over the clients."""

    label = "GHN"
    point = "pre"
