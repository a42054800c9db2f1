from dataclasses import dataclass
from typing import Annotated

import fedweave as fw
from fedweave.settings import LinearSpace, Share


@fw.method("damped")
@dataclass(frozen=True, kw_only=True)
class Damped(fw.families.SplitClient, fw.families.GlobalModel):
    """FedAvg whose server goes a part of the way."""

    step: Annotated[Share, LinearSpace(0.1, 1.0), "part of the way to the mean; 1 is FedAvg"] = 0.5
    label = "Damped"

    def merge(self, old, mean):
        return {name: value + self.step * (mean[name] - value) for name, value in old.items()}
