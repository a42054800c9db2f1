"""Named streams of random numbers on the host: partitions, participation, minibatch plans, resampling."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

WORDS = 4  # numbers of 32 bits that numpy's SeedSequence mixes in a pool
HALF = np.uint64(32)
Words = npt.NDArray[np.uint32]


def stream(*ints: int) -> np.random.Generator:
    """A generator that depends on `ints` only, the same on every machine (Philox over numpy's SeedSequence)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(i) for i in ints])))


def first_numbers(*ints: int, ids: np.ndarray) -> np.ndarray:
    """`stream(*ints, i).random()` of every i in `ids` [N], float64 [N]."""
    return np.array([generator.random() for generator in streams(*ints, ids=ids)], dtype=np.float64)


def streams(*ints: int, ids: np.ndarray) -> Iterator[np.random.Generator]:
    """`stream(*ints, i)` of every i in `ids`, in turn: a stream takes 20 µs to start, and one of these 1 µs.

    It is one generator, which moves to the next stream when the caller asks for that. The arithmetic is that of numpy's
    SeedSequence (O'Neill's `seed_seq_fe`), which numpy promises to keep.
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
