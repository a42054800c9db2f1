"""Which finalist each client would deploy if not all deployed the same: chosen on validation rows, judged on test rows.

A client's own difference between two methods is noisy where it has few validation rows, so it is shrunk as in a
random-effects model: d* = c + t² / (t² + e²) (d - c), with the client's standard error e and the variance t² between
clients that is left after the mean of e² is subtracted. The centre c is the mean difference, and at most zero, so that
only a client's own rows speak against the method that all deploy.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedweave.recommendation.per_client import PairedDifference


def choose(
    differences: Mapping[str, Mapping[int, PairedDifference]],
    higher_is_better: bool,
    excluded: Mapping[str, Sequence[int]],
) -> dict[int, str]:
    """Client -> its method, of the clients that would not deploy the method that all others do.

    Args:
        differences: each other finalist -> client -> its difference from that method on validation rows.
        higher_is_better: whether a higher score is better.
        excluded: method -> clients that lose by it.
    """
    sign = 1.0 if higher_is_better else -1.0
    best: dict[int, tuple[float, str]] = {}
    for name, pairs in differences.items():
        means, errors = (np.array([getattr(pair, key) for pair in pairs.values()]) for key in ("difference", "error"))
        for client, gain in zip(pairs, shrink(sign * means, errors), strict=True):
            if gain > best.get(client, (0.0, ""))[0] and client not in excluded.get(name, ()):
                best[client] = float(gain), name
    return {client: name for client, (_, name) in sorted(best.items())}


def shrink(differences: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Differences [N], positive where another method is better, towards their mean or zero, whichever is lower.

    Args:
        differences: of the clients.
        errors: their standard errors [N]; NaN where nothing is known of a client's own.
    """
    known = np.isfinite(errors)
    centre = min(0.0, float(differences.mean())) if len(differences) else 0.0
    if known.sum() < 2:
        return np.full(len(differences), centre)
    between = max(0.0, float(differences[known].var(ddof=1) - np.mean(errors[known] ** 2)))
    total = between + errors**2
    share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(centre + share * (differences - centre))
