"""The checks of methods that users call."""

from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import Any

from fedweave.client.solvers import SGD, Adam
from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput, format_count
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.weaving import Weaving
from fedweave.registry import error_line, users_file
from fedweave.testing import contract
from fedweave.testing.federations import TASKS
from fedweave.testing.hook_names import check_names

Check = Callable[[], object]
# Parts of PyTorch's messages about tensors of two types.
OTHER_TYPES = ("same dtype", "found dtype", "but found Double", "but found Float", "expected scalar type")
MODEL_TYPE = "x.to(like), with `like` one of its parameters, or fedweave.families.init_parameters for a network"


def check_method(cls: type[Method], **settings: Any) -> None:
    """Check the promises of every method, on all toy tasks that have what the method needs, and print their number.

    Args:
        cls: the class, decorated with `dataclass(frozen=True, kw_only=True)`.
        settings: values for its fields that make it quick.

    Raises:
        AssertionError: naming the task and what is broken.
    """
    checks, begin = method_checks(cls, **settings), monotonic()
    for check in checks:
        check()
    print(f"{cls.__name__}: {format_count(len(checks), 'check')} passed in {monotonic() - begin:.0f} s")


def method_checks(cls: type[Method], **settings: Any) -> list[Check]:
    """The checks of `check_method` one by one, for `pytest.mark.parametrize`.

    Raises:
        AssertionError: the class is not a complete method, misspells the name of a hook, has a setting without a type,
            or fits no task.
    """
    is_method = isinstance(cls, type) and issubclass(cls, Method)
    assert is_method, f"{cls!r}: derive it from fedweave.engine.protocol.Method"
    assert not cls.__abstractmethods__, f"{cls.__name__}: define {', '.join(sorted(cls.__abstractmethods__))}"
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    assert frozen, f"{cls.__name__}: decorate it with @dataclass(frozen=True, kw_only=True)"
    check_names(cls)
    kinds = [kind for kind, (task, _) in TASKS.items() if cls.needs <= task().capabilities]
    assert kinds, f"{cls.__name__}: needs {sorted(cls.needs)}, which no task has"
    return [check for kind in kinds for check in _method_checks(cls, kind, settings)]


def _method_checks(cls: type[Method], kind: str, settings: dict[str, Any]) -> list[Check]:
    @cache
    def build_objects() -> tuple[Method, Clients]:
        make_task, make_federation = TASKS[kind]
        task, federation = make_task(), make_federation()
        solver = Adam(lr=0.02, weight_decay=5e-4) if kind == "nodes" else SGD(lr=0.1)
        # Clients keep their optimisers on the task whose solver has moments.
        rows = Training(batch_size=4, epochs=2)
        training = Training(batch_size=0, epochs=2, keep_optimizer=True) if kind == "nodes" else rows
        return cls(**{"task": task, "solver": solver, "training": training, **settings}), federation

    @cache
    def expected_rounds() -> list[Any]:
        return contract.run_rounds(*build_objects())

    def build_check(check: Callable[..., object], compared: bool, alone: bool = False) -> Check:
        def perform() -> None:
            arguments = () if alone else build_objects()
            check(*arguments, *([expected_rounds()] if compared else []))

        return _report(perform, check, cls, kind)

    learning = [build_check(contract.all_parameters_learn, True)] if issubclass(cls, GeneratedModels) else []
    weaving = [build_check(contract.controls_reach_the_graph, False)] if issubclass(cls, Weaving) else []
    return [
        build_check(contract.names_are_known, False),
        build_check(contract.executors_agree, True),
        build_check(contract.absent_clients_keep_their_bits, False),
        build_check(contract.resumed_equals_uninterrupted, True),
        build_check(contract.state_is_plain_tensors, True, alone=True),
        build_check(contract.training_ignores_test_rows, True),
        build_check(contract.newcomers_join, False),
        build_check(contract.rows_are_those_of_ids, True),
        *learning,
        *weaving,
    ]


def _report(perform: Check, check: Callable[..., object], cls: type[Method], kind: str) -> Check:
    """`perform` as a test of its own; whatever the code of a user raises becomes an AssertionError.

    Args:
        check: whose name and promise (the first line of its docstring) the test has.
        kind: of the toy task.
    """
    promise, where = str(check.__doc__).splitlines()[0], f"{cls.__name__} on {kind}"

    def report() -> None:
        try:
            perform()
        except BadInput as error:  # its line says what is wrong, whichever promise was checked
            raise AssertionError(f"{where}: {error}") from error
        except AssertionError as error:
            raise AssertionError(f"{where}: {promise} {error}") from error
        except Exception as error:
            raise AssertionError(f"{where}: {promise} {_describe_error(cls, error)}") from error

    report.__name__ = f"{cls.__name__}-{kind}-{check.__name__}"
    return report


def _describe_error(cls: type[Method], error: Exception) -> str:
    """An error with the line of the user's file that raised it, and the way out where the types of tensors differ."""
    file, line = users_file(cls), error_line(cls, error)
    place = f" ({file.name}, line {line})" if file and line else ""
    hint = (
        f"; the checks train in float64, so give your tensors the type of the model: {MODEL_TYPE}"
        if any(words in str(error) for words in OTHER_TYPES)
        else ""
    )
    return f"{type(error).__name__}{place}: {error}{hint}"
