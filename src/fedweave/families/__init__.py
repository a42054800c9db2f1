"""Families of methods: abstract classes that methods combine, one for the server's state, one for the client's."""

from fedweave.families.base import ClientModels, GlobalModel, SplitClient
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.weaving import Weaving

__all__ = ["ClientModels", "GeneratedModels", "GlobalModel", "SplitClient", "Weaving"]
