"""The table of methods: one file each. A new method is a file here, an import and an entry below, and a block in studies/base.yaml."""

from fedweave.methods.cfl import CFL
from fedweave.methods.direct_matrix import DirectMatrix
from fedweave.methods.ditto import Ditto
from fedweave.methods.fedaghn import FedAGHN
from fedweave.methods.fedah import FedAH
from fedweave.methods.fedala import FedALA
from fedweave.methods.fedamp import FedAMP
from fedweave.methods.fedavg import FedAvg
from fedweave.methods.fedavg_ft import FedAvgFT
from fedweave.methods.fedbn import FedBN
from fedweave.methods.fedcp import FedCP
from fedweave.methods.fedfomo import FedFomo
from fedweave.methods.fedpac import FedPAC
from fedweave.methods.fedper import FedPer
from fedweave.methods.fedprox import FedProx
from fedweave.methods.fedprox_ft import FedProxFT
from fedweave.methods.fedpub import FedPub
from fedweave.methods.fedrep import FedRep
from fedweave.methods.fedrod import FedRoD
from fedweave.methods.fedsage import FedSage
from fedweave.methods.fedsheafhn import FedSheafHN
from fedweave.methods.ghn import GHN
from fedweave.methods.heurfedamp import HeurFedAMP
from fedweave.methods.heurpfedla import HeurpFedLA
from fedweave.methods.knn_per import KnnPer
from fedweave.methods.local import Local
from fedweave.methods.panacea import Panacea
from fedweave.methods.perfedavg import PerFedAvg
from fedweave.methods.pfedgat import PFedGAT
from fedweave.methods.pfedgraph import PFedGraph
from fedweave.methods.pfedhn import PFedHN
from fedweave.methods.pfedla import PFedLA
from fedweave.methods.pfedme import PFedMe
from fedweave.methods.sfl import SFL
from fedweave.methods.shn import SHN
from fedweave.protocol import Method

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedavg_ft": FedAvgFT,
    "fedprox": FedProx,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbn": FedBN,
    "fedamp": FedAMP,
    "knn_per": KnnPer,
    "fedaghn": FedAGHN,
    "pfedhn": PFedHN,
    "ghn": GHN,
    "shn": SHN,
    "pfedla": PFedLA,
    "heurpfedla": HeurpFedLA,
    "pfedgat": PFedGAT,
    "direct_matrix": DirectMatrix,
    "fedsheafhn": FedSheafHN,
    "fedprox_ft": FedProxFT,
    "perfedavg": PerFedAvg,
    "pfedme": PFedMe,
    "cfl": CFL,
    "heurfedamp": HeurFedAMP,
    "fedala": FedALA,
    "fedah": FedAH,
    "fedrod": FedRoD,
    "fedcp": FedCP,
    "fedpac": FedPAC,
    "fedfomo": FedFomo,
    "pfedgraph": PFedGraph,
    "sfl": SFL,
    "panacea": Panacea,
    "fedpub": FedPub,
    "fedsage": FedSage,
}
