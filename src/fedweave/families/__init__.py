"""Families of methods: abstract classes that leaves combine, one for what the server keeps, one for what the client keeps."""

from fedweave.families.base import ClientModels, GeneratedModels, GlobalModel, SplitClient

__all__ = ["ClientModels", "GeneratedModels", "GlobalModel", "SplitClient"]
