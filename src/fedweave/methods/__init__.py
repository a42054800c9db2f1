"""The table of methods: one file each. A new method is a file here, a line below and a block in params.yaml."""

from fedweave.methods.ditto import Ditto
from fedweave.methods.fedamp import FedAMP
from fedweave.methods.fedavg import FedAvg
from fedweave.methods.fedavg_ft import FedAvgFT
from fedweave.methods.fedbn import FedBN
from fedweave.methods.fedper import FedPer
from fedweave.methods.fedprox import FedProx
from fedweave.methods.fedrep import FedRep
from fedweave.methods.knn_per import KnnPer
from fedweave.methods.local import Local
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
}
