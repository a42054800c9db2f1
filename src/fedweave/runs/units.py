"""Units of clients, such as the person whose arms are two clients, in several splits of one run."""

from collections.abc import Mapping

from fedweave.errors import BadInput


def check_equal_units(run: str, units: Mapping[int, tuple[str, ...]]) -> None:
    """Refuse splits whose clients are of different units, because tests use the clients of all repetitions together.

    Args:
        run: its key.
        units: seed of a split -> the unit of each client.

    Raises:
        BadInput: naming both splits.
    """
    (first_seed, first_units), (other_seed, other_units) = units.items()
    if first_units != other_units:
        raise BadInput(
            f"runs.{run}: partition.seeds: clients of split {other_seed} are of other units "
            f"than those of split {first_seed}; "
            "let the rule give client i the same unit in every split, or give no units"
        )
