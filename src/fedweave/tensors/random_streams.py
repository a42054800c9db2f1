"""Named streams of random numbers on the host: partitions, participation, minibatch plans, resampling."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

WORDS = 4  # numbers of 32 bits that numpy's SeedSequence mixes in a pool
HALF = np.uint64(32)
LOW = np.uint64(2**32 - 1)
Words = npt.NDArray[np.uint32]


def stream(*ints: int) -> np.random.Generator:
    """A generator that depends on `ints` only, the same on every machine (Philox over numpy's SeedSequence)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(i) for i in ints])))


def first_numbers(*ints: int, ids: np.ndarray) -> np.ndarray:
    """`stream(*ints, i).random()` of every i in `ids` [N], float64 [N]; all at once: a stream takes 20 µs to start.

    The arithmetic is that of numpy's SeedSequence (O'Neill's `seed_seq_fe`) and of Philox4x64-10 (Salmon et al.,
    SC 2011), which numpy promises to keep.
    """
    if not _fits_pool(ints, ids):
        return np.array([stream(*ints, int(i)).random() for i in ids], dtype=np.float64)
    with np.errstate(over="ignore"):
        first = _philox(*_keys(_pool(_entropy(ints, ids))))
    return (first >> np.uint64(11)) * 2.0**-53


def streams(*ints: int, ids: np.ndarray) -> Iterator[np.random.Generator]:
    """`stream(*ints, i)` of every i in `ids`, in turn.

    It is one generator, which moves to the next stream when the caller asks for that.
    """
    if not _fits_pool(ints, ids):
        yield from (stream(*ints, int(i)) for i in ids)
        return
    with np.errstate(over="ignore"):
        keys = np.stack(_keys(_pool(_entropy(ints, ids))), axis=1)
    generator = stream()
    start = generator.bit_generator.state
    for key in keys:
        generator.bit_generator.state = {**start, "state": {**start["state"], "key": key}}
        yield generator


def _fits_pool(ints: Sequence[int], ids: np.ndarray) -> bool:
    """Whether all numbers have 32 bits, and one of `ids` beside `ints` fits in a pool."""
    return len(ints) < WORDS and all(0 <= i < 2**32 for i in ints) and bool(((ids >= 0) & (ids < 2**32)).all())


def _entropy(ints: Sequence[int], ids: np.ndarray) -> list[Words]:
    """The entropy [4][N] of 32 bits of a SeedSequence of `ints` and one of `ids` [N]."""
    words = [np.full(len(ids), i, dtype=np.uint32) for i in ints] + [ids.astype(np.uint32)]
    return words + [np.zeros(len(ids), dtype=np.uint32)] * (WORDS - len(words))


def _pool(entropy: list[Words]) -> list[Words]:
    """The pool [4][N] of a SeedSequence, from entropy [4][N] of 32 bits."""
    constants = _hash_constants(0x43B0D7E5, 0x931E8875)
    pool = [_hash_word(word, constants) for word in entropy]
    for source in range(WORDS):
        for target in range(WORDS):
            if source != target:
                mixed: Words = pool[target] * np.uint32(0xCA01F9DD) - _hash_word(pool[source], constants) * np.uint32(
                    0x4973F715
                )
                pool[target] = mixed ^ (mixed >> np.uint32(16))
    return pool


def _keys(pool: list[np.ndarray]) -> list[np.ndarray]:
    """The two keys [N] of 64 bits that a SeedSequence generates."""
    constants = _hash_constants(0x8B51F9DD, 0x58F38DED)
    words = [_hash_word(word, constants).astype(np.uint64) for word in pool]
    return [words[0] | words[1] << HALF, words[2] | words[3] << HALF]


def _hash_constants(constant: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """The constants of the successive hashes of a SeedSequence: (c, c·f), (c·f, c·f²), ... modulo 2³²."""
    while True:
        following = constant * factor % 2**32
        yield np.uint32(constant), np.uint32(following)
        constant = following


def _hash_word(word: Words, pairs: Iterator[tuple[np.uint32, np.uint32]]) -> Words:
    """The next hash of `word` [N]."""
    mask, factor = next(pairs)
    word = (word ^ mask) * factor
    return word ^ (word >> np.uint32(16))


def _philox(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The first number of 64 bits of every Philox4x64-10 with keys `first`, `second` [N]: that of the counter 1."""
    a, b, c, d = (np.full(len(first), i, dtype=np.uint64) for i in (1, 0, 0, 0))
    for _ in range(10):
        high, low = _product(a, 0xD2E7470EE14C6C93)
        other_high, other_low = _product(c, 0xCA5A826395121157)
        a, b, c, d = other_high ^ b ^ first, other_low, high ^ d ^ second, low
        first, second = first + np.uint64(0x9E3779B97F4A7C15), second + np.uint64(0xBB67AE8584CAA73B)
    return a


def _product(x: np.ndarray, factor: int) -> tuple[np.ndarray, np.ndarray]:
    """The upper and the lower 64 bits of `x` [N] · `factor`."""
    high, low = np.uint64(factor >> 32), np.uint64(factor % 2**32)
    left, right = x >> HALF, x & LOW
    middle = left * low + (right * low >> HALF)
    rest = (middle & LOW) + right * high
    return left * high + (middle >> HALF) + (rest >> HALF), x * np.uint64(factor)
