"""Ways to damage a file: patches, cuts and splices, and the same inside of archives, whose sums are corrected."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from random import Random

Mutation = Callable[[Random, Sequence[bytes]], bytes]

EDGES = (
    0,
    1,
    2,
    1 << 40,
    *(edge for bits in (8, 16, 32, 64) for edge in ((1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1)),
)
LONGEST = 1 << 16  # bytes of a damaged file


def patches(random: Random, corpus: Sequence[bytes]) -> bytes:
    """A file with 1 to 4 bytes changed, once: the smallest damage."""
    content = random.choice(corpus)
    at, patch = random.randrange(len(content)), random.randbytes(random.randint(1, 4))
    return content[:at] + patch + content[at + len(patch) :]


def damage(random: Random, corpus: Sequence[bytes]) -> bytes:
    """A file after a few steps of any kind."""
    content = bytearray(random.choice(corpus))
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        random.choice(STEPS)(random, content, corpus)
    return bytes(content[:LONGEST])


def _place(random: Random, content: bytearray) -> int:
    return random.randrange(len(content) + 1)


def _patch(random: Random, content: bytearray, _: Sequence[bytes]) -> None:
    at, size = _place(random, content), random.randint(1, 4)
    content[at : at + size] = random.randbytes(size)


def _flip(random: Random, content: bytearray, _: Sequence[bytes]) -> None:
    if content:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def _number(random: Random, content: bytearray, _: Sequence[bytes]) -> None:
    """A number at the limit of its range, binary or as digits."""
    at, value, width = _place(random, content), random.choice(EDGES), random.choice((1, 2, 4, 8))
    if random.random() < 0.2:
        content[at : at + 1] = str(value * random.choice((1, -1))).encode()
    else:
        content[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, random.choice(("little", "big")))


def _cut(random: Random, content: bytearray, _: Sequence[bytes]) -> None:
    del content[_place(random, content) :]


def _remove(random: Random, content: bytearray, _: Sequence[bytes]) -> None:
    at = _place(random, content)
    del content[at : at + random.randint(1, 16)]


def _repeat(random: Random, content: bytearray, _: Sequence[bytes]) -> None:
    at = _place(random, content)
    content[at:at] = content[at : at + random.randint(1, 64)] * random.choice((1, 2, 50))


def _splice(random: Random, content: bytearray, corpus: Sequence[bytes]) -> None:
    other, at = random.choice(corpus), _place(random, content)
    start = random.randrange(len(other) + 1)
    size = random.randint(1, 200)
    content[at : at + random.choice((0, size))] = other[start : start + size]


STEPS = (_patch, _patch, _flip, _number, _number, _cut, _remove, _repeat, _splice)


def members(inner: Mutation) -> Mutation:
    """`inner` inside of a zip archive. The archive itself is valid."""

    def mutate(random: Random, corpus: Sequence[bytes]) -> bytes:
        if random.random() < 0.3:
            return damage(random, corpus)
        with zipfile.ZipFile(io.BytesIO(random.choice(corpus))) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        for name in random.sample(sorted(content), random.randint(1, min(3, len(content)))):
            content[name] = inner(random, [content[name]]) if content[name] else random.randbytes(3)
        if random.random() < 0.1:
            del content[random.choice(sorted(content))]
        packed = io.BytesIO()
        way = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with zipfile.ZipFile(packed, "w", way, compresslevel=1) as archive:
            for name, raw in content.items():
                archive.writestr(name, raw)
        return packed.getvalue()

    return mutate


def compressed(inner: Mutation) -> Mutation:
    """`inner` inside of gzip, or inside of a tar archive in gzip, whose header sums are corrected."""

    def mutate(random: Random, corpus: Sequence[bytes]) -> bytes:
        if random.random() < 0.4:
            return damage(random, corpus)
        raw = bytearray(inner(random, [gzip.decompress(random.choice(corpus))]))
        if len(raw) >= tarfile.BLOCKSIZE and random.random() < 0.9:
            raw[148:156] = b" " * 8
            raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
        return gzip.compress(raw, 1)

    return mutate


def npy_header(random: Random, corpus: Sequence[bytes]) -> bytes:
    """A .npy file with a header of its own."""
    if random.random() < 0.5:
        return damage(random, corpus)
    sizes = [random.choice((*EDGES, 3, 3, 2, -1)) for _ in range(random.choice((0, 1, 2, 2, 3, 40)))]
    code = random.choice("<>|=") + random.choice("biufcSUOVMm") + str(random.choice((1, 2, 4, 8, 16, *EDGES)))
    text = str({"descr": code, "fortran_order": random.random() < 0.5, "shape": tuple(sizes)}).encode()
    content = random.choice(corpus)[-48:]
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + content


_PARTS = (
    *(bytes([code]) for code in b"()]}.0N\x88\x89aesutblRb\x81\x85\x86\x87\x94\x8f\x90\x91\x8c2"),
    *(pickle.BINGET + bytes([i]) for i in range(6)),
    *(pickle.BINPUT + bytes([i]) for i in range(6)),
    b"K\x03",
    b"K\x01",
    b"M\x00\x10",
    b"J\xff\xff\xff\x7f",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"U\x02i4",
    b"U\x02f8",
    b"U\x02O8",
    b"U\x01<",
    b"C\x08abcdefgh",
    b"\x8c\x02i8",
    b"\x8c\x01<",
    b"X\x03\x00\x00\x00abc",
    b"cnumpy\ndtype\n",
    b"cnumpy\nndarray\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy.core.multiarray\nscalar\n",
    b"cnumpy.core.numeric\n_frombuffer\n",
    b"cscipy.sparse.csr\ncsr_matrix\n",
    b"c_codecs\nencode\n",
    b"ccollections\ndefaultdict\n",
)


def program(random: Random, corpus: Sequence[bytes]) -> bytes:
    """A pickle of instructions in any order, or a damaged one with such instructions inserted."""
    if random.random() < 0.6:
        return damage(random, corpus)
    parts = b"".join(random.choices(_PARTS, k=random.randint(1, 40)))
    content = random.choice(corpus)
    at = random.randrange(len(content))
    return b"\x80\x02" + parts + b"." if random.random() < 0.3 else content[:at] + parts + content[at:]
