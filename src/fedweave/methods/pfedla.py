"""pFedLA (Ma et al., CVPR 2022, arXiv:2205.03993).

Server keeps the latest model of every client and, per client, a vector v_i and a hypernetwork that turns it into
mixture weights α_i^l over all clients for every layer l. θ̄_i^l = Σ_j α_ij^l θ_j^l goes down, the trained θ_i comes up
(2P). v_i and its network take one gradient step on ½ ‖θ̄_i − θ_i‖²; only participants are aggregated, trained and
updated. θ̄_i is deployed.

Deviations:
1. Weights are a softmax; public re-implementations (KarhouTam/pFedLA, KarhouTam/FL-bench) normalise a ReLU:
   `relu_norm`.
2. Clients start from one common model and see models of the round before; in KarhouTam/pFedLA their starts differ, and
   later clients of a round see what earlier ones trained.
3. The printed Δφ = (∂θ̄/∂φ)ᵀ Δθ is an increment, hence descent; the re-implementations subtract it: server_sign
   "literal".
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families.mixtures import LayerwiseHypernetworks


@method("pfedla")
@dataclass(frozen=True, kw_only=True)
class PFedLA(LayerwiseHypernetworks):
    """Layer-wise mixtures of the clients' models, learned per client."""

    label = "pFedLA"
    point = "pre"
