"""What clients of a task learn, before its data are read: of data sets with published sizes, models can be built.

So a study is refused before any work if an adapter does not fit its model, or a method does not fit what is trained.
"""

import json
from collections.abc import Callable
from functools import lru_cache

from fedweave import data
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.data.facts import FACTS
from fedweave.errors import BadInput, relocate
from fedweave.models import MODELS, ClientModel, build
from fedweave.study import model_files
from fedweave.study.schema import TaskSpec

ADAPTER = "model.adapter"


def build_task(task: TaskSpec, where: str) -> Task | None:
    """What clients of `task` learn; None where shapes are known only with the data, or the model does not fit them.

    Args:
        where: place of the task in messages.

    Raises:
        BadInput: the adapter does not fit the model.
    """
    sizes, kind = FACTS.get(task.dataset), data.KINDS.get(task.dataset)
    if sizes is None or kind == "series" or not sizes.classes:
        return None
    with relocate({ADAPTER: f"{where}.{ADAPTER}"}):
        block, cls = json.dumps({**task.model}, default=list), MODELS[task.model["name"]]
        return _build(block, cls, sizes.shape[1:], sizes.classes, kind == "graph")


@lru_cache(maxsize=32)
def _build(block: str, _cls: type[ClientModel], shape: tuple[int, ...], classes: int, graph: bool) -> Task | None:
    """The task of a model block; its class is a part of the key of the cache."""
    options = {key: value for key, value in json.loads(block).items() if key != model_files.DIGEST}
    name = options.pop("name")
    kind: Callable[..., Task] = NodeClassification if graph else RowClassification
    try:
        return kind(lambda: build(name, shape, classes, **options))
    except Exception as error:  # of a model that does not fit, which is refused with its data
        if isinstance(error, BadInput) and error.place.startswith(ADAPTER):
            raise
        return None
