"""The settings of a method's class: what users may give, and what stands for the rest before a run is built."""

from dataclasses import MISSING, fields
from typing import Any, NoReturn, Self

from fedweave.errors import BadInput, format_value, suggest
from fedweave.settings import Setting


class Placeholder:
    """Stands for what a method gets when a run is built, such as its task. Before that it has only its settings."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BadInput(f"a method that is not part of a run has no {name}; pass it to fedweave.compare or fedweave.fit")


UNBOUND: Any = Placeholder()


class NamedSettings:
    """A dataclass that refuses unknown and missing settings by a line with its own, where Python says only their names.

    Raises:
        BadInput: a setting has no name, a name that is not one of the class's fields, or neither a value nor a default.
    """

    def __new__(cls, *values: object, **given: object) -> Self:
        """The instance, still without its fields."""
        # Each class is a dataclass, which mypy does not know here.
        names = {field.name for field in fields(cls) if field.init}  # type: ignore[arg-type]
        if values:
            raise BadInput(cls.__name__, f"{format_value(values[0])} has no name; {cls._own_names()}")
        if unknown := [name for name in given if name not in names]:
            own = [setting.name for setting in cls.settings()]
            raise BadInput(
                f"{cls.__name__}: {unknown[0]}={format_value(given[unknown[0]])}",
                f"unknown setting; {suggest(unknown[0], own)}{cls._own_names()}",
            )
        if missing := [name for name in cls.required_settings() if name not in given]:
            raise BadInput(f"{cls.__name__}: {missing[0]}", f"missing, and it has no default; {cls._own_names()}")
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """What a copy of the instance gives to `__new__`."""
        return (), {name: getattr(self, name) for name in self.required_settings()}

    @classmethod
    def required_settings(cls) -> list[str]:
        """Names of the settings without a default."""
        own = [field for field in fields(cls) if field.init]  # type: ignore[arg-type]
        return [field.name for field in own if field.default is MISSING and field.default_factory is MISSING]

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """What users may set."""
        raise NotImplementedError

    @classmethod
    def _own_names(cls) -> str:
        own = ", ".join(f"{setting.name}=..." for setting in cls.settings())
        return f"its settings: {cls.__name__}({own})" if own else "it has no settings"
