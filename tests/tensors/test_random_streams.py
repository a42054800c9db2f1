"""Many streams at once equal the streams one by one."""

import numpy as np
import pytest

from fedweave.tensors.random_streams import first_numbers, stream, streams

INTS = [(), (0,), (7, 1), (3, 1, 250), (2**32 - 1, 2**31, 1), (2**40, 1), (1, 2, 3, 4)]


@pytest.mark.parametrize("ints", INTS)
def test_first_numbers_are_those_of_single_streams(ints: tuple[int, ...]) -> None:
    """This includes large numbers, and more numbers than a pool has words."""
    ids = np.array([0, 1, 2, 9999, 2**31, 2**32 - 1, 5])
    expected = [stream(*ints, int(i)).random() for i in ids]
    assert first_numbers(*ints, ids=ids).tolist() == expected


def test_identities_that_need_more_bits_have_the_same_draws() -> None:
    """They are drawn one by one."""
    assert first_numbers(1, ids=np.array([2**33]))[0] == stream(1, 2**33).random()
    _same((1,), np.array([2, 2**33]))


@pytest.mark.parametrize("ints", INTS)
def test_draws_are_those_of_single_streams(ints: tuple[int, ...]) -> None:
    """This holds for any earlier draws from the stream: a generator keeps half of a word for the next draw."""
    ids = np.array([0, 1, 2, 9999, 2**31, 2**32 - 1, 5])
    _same(ints, ids)


def _same(ints: tuple[int, ...], ids: np.ndarray) -> None:
    for i, generator in zip(ids, streams(*ints, ids=ids), strict=True):
        alone = stream(*ints, int(i))
        for one in (generator, alone):
            one.integers(0, 7, 3, dtype=np.uint32)
        assert generator.permutation(11).tolist() == alone.permutation(11).tolist()
        assert generator.random(5).tolist() == alone.random(5).tolist()
