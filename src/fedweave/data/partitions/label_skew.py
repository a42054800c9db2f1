"""Label skews: how many rows of each class every client gets.

A dealer maps the class sizes to a table of counts [N, C]; which rows they are is drawn afterwards. Legend: N
clients, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from fedweave.data.partitions.options import check_integer
from fedweave.data.partitions.quotas import (
    allocate_rows,
    assign_classes,
    distribute_evenly,
    split_evenly,
    split_proportionally,
)
from fedweave.errors import BadInput
from fedweave.settings import Above, AtLeast, AtMost

Classes = Annotated[int, AtLeast(1), "classes of a client"]
Lists = Annotated[Sequence[Sequence[int]], "the classes of each client"]
RowCount = Annotated[int | None, AtLeast(1), "rows of a client; by default as many as fit"]
Concentration = Annotated[float, Above(0), "concentration: smaller is more skewed"]
Groups = Annotated[int, AtLeast(1), "groups of clients"]
GroupShare = Annotated[float, Above(0), AtMost(1), "share of a class that its own group gets"]


class ClassSizes(NamedTuple):
    """What a dealer may know about the rows it deals out."""

    sizes: np.ndarray  # [C] rows of each class
    parents: np.ndarray | None  # [C] superclass of each class


class Allocation(NamedTuple):
    """What every client gets."""

    counts: np.ndarray  # [N, C] int64
    group: np.ndarray | None = None  # [N] planted group
    shares: np.ndarray | None = None  # [N, C] class probabilities the counts were drawn from


def iid(census: ClassSizes, clients: int, rng: np.random.Generator) -> Allocation:
    """A random permutation of all rows cut in N parts whose sizes differ by at most one."""
    labels = rng.permutation(np.repeat(np.arange(len(census.sizes)), census.sizes))
    parts = np.array_split(labels, clients)
    return Allocation(np.stack([np.bincount(part, minlength=len(census.sizes)) for part in parts]))


def shards(census: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Classes) -> Allocation:
    """At most `classes` classes a client: every class is cut in equal shards, which are shuffled and distributed.

    Source: the pathological setting of FedAGHN (Song et al., AAAI 2025); songjiarui00/FedAGHN. A client may
    get two shards of one class; rows that do not fill a shard are left out.
    """
    total = len(census.sizes)
    check_integer("classes", classes, 1, total)
    if classes * clients % total:
        raise BadInput(f"partition.clients: {clients} x {classes} shards are not a multiple of {total} classes")
    each = classes * clients // total
    if each > census.sizes.min():
        raise BadInput(f"partition.clients: {each} shards a class, but the smallest has {census.sizes.min()} rows")
    hands = rng.permutation(np.repeat(np.arange(total), each)).reshape(clients, classes)
    dealt = np.stack([np.bincount(hand, minlength=total) for hand in hands])
    return Allocation(dealt * (census.sizes // each))


def clusters(census: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Classes) -> Allocation:
    """Clients in C / `classes` clusters; a cluster owns its classes and shares them evenly.

    Source: the pathological setting of pFedGraph (Ye et al., ICML 2023), used by pFedGAT;
    MediaBrain-SJTU/pFedGraph.
    """
    del rng
    total = len(census.sizes)
    check_integer("classes", classes, 1, total)
    count = total // classes
    if total % classes or clients % count:
        raise BadInput(
            f"partition.clients: {clients} clients do not fill clusters of {classes} of {total} classes; "
            f"classes must divide {total} and clients must be a multiple of {max(1, count)}"
        )
    group = np.arange(clients) % count
    owner = np.arange(total) // classes
    return Allocation(distribute_evenly(census.sizes, group[:, None] == owner[None]), group)


def dirichlet(
    census: ClassSizes,
    clients: int,
    rng: np.random.Generator,
    *,
    beta: Concentration,
    balance: Annotated[bool, "nothing more for clients that hold rows / N"] = True,
    minimum: Annotated[int, AtLeast(0), "rows of the smallest client"] = 10,
    attempts: Annotated[int, AtLeast(1), "draws until every client has so many"] = 1000,
) -> Allocation:
    """Every class is shared out by a draw from Dir(`beta` * 1_N); redrawn until all have `minimum` rows.

    `balance` zeroes the share of clients that already hold rows / N or more. Source: Hsu et al. (2019) in the
    form of songjiarui00/FedAGHN and MediaBrain-SJTU/pFedGraph.
    """
    check_integer("minimum", minimum, 0, int(census.sizes.sum()) // clients)
    for _ in range(attempts):
        counts = _draw_dirichlet(census.sizes, clients, float(beta), balance, rng)
        if counts is not None and counts.sum(1).min() >= minimum:
            return Allocation(counts)
    raise BadInput(
        f"partition.beta: no draw of Dir({beta}) in {attempts} gave {clients} clients {minimum} rows each; "
        "raise beta, or lower minimum or clients"
    )


def _draw_dirichlet(
    sizes: np.ndarray, clients: int, beta: float, balance: bool, rng: np.random.Generator
) -> np.ndarray | None:
    """One Dirichlet draw [N, C]; None if a class found no client to go to."""
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    for c, size in enumerate(sizes):
        share = rng.dirichlet(np.full(clients, beta))
        if balance:
            share = share * (counts.sum(1) < sizes.sum() / clients)
        if not share.sum() > 0:
            return None
        counts[:, c] = split_proportionally(share, int(size))
    return counts


def lda(census: ClassSizes, clients: int, rng: np.random.Generator, *, alpha: Concentration) -> Allocation:
    """Equal sizes; client k draws its rows without replacement from pi_k ~ Dir(`alpha` * 1_C).

    Source: balanced latent Dirichlet allocation of adap/flower's baseline utilities, used by SHN (Nguyen et
    al.).
    """
    shares = rng.dirichlet(np.full(len(census.sizes), float(alpha)), size=clients)
    return Allocation(draw_counts(census.sizes, shares, rng), shares=shares)


def draw_counts(sizes: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts [N, C] of equal row sums drawn from `shares` [N, C]; a used-up class gets probability 0."""
    left = sizes.copy()
    counts = np.zeros(shares.shape, dtype=np.int64)
    for row, share, size in zip(counts, shares, split_evenly(int(sizes.sum()), len(shares)), strict=True):
        while row.sum() < size:
            weight = np.where(left > 0, share + 1e-5, 0.0)
            draws = rng.choice(len(sizes), size=size - row.sum(), p=weight / weight.sum())
            draws = draws[: _count_usable_draws(draws, left)]
            taken = np.bincount(draws, minlength=len(sizes))
            row += taken
            left -= taken
    return counts


def _count_usable_draws(draws: np.ndarray, left: np.ndarray) -> int:
    """How many of the `draws` can be kept until some class is used up."""
    used = np.zeros_like(left)
    for position, c in enumerate(draws):
        used[c] += 1
        if used[c] == left[c]:
            return position + 1
    return len(draws)


def superclass(census: ClassSizes, clients: int, rng: np.random.Generator) -> Allocation:
    """N / S clients for each of S superclasses share its rows evenly, stratified by class.

    Source: Cluster-CIFAR100 of SHN (Nguyen et al.), client k belongs to superclass k // 5 of 20.
    """
    del rng
    if census.parents is None:
        raise BadInput("partition.name: superclass needs a data set with superclasses (cifar100)")
    count = int(census.parents.max()) + 1
    if clients % count:
        raise BadInput(f"partition.clients: {clients} is not a multiple of {count} superclasses")
    group = np.arange(clients) // (clients // count)
    return Allocation(distribute_evenly(census.sizes, group[:, None] == census.parents[None]), group)


def grouped(
    census: ClassSizes, clients: int, rng: np.random.Generator, *, groups: Groups = 5, share: GroupShare = 0.8
) -> Allocation:
    """Planted groups: `share` of a class goes to its group, the rest to all clients, evenly in both cases.

    Source: the case study of FedAGHN (Song et al., AAAI 2025).
    """
    total = len(census.sizes)
    check_integer("groups", groups, 1, min(clients, total))
    if total % groups or clients % groups:
        raise BadInput(f"partition.groups: {groups} must divide {clients} clients and {total} classes")
    group = np.arange(clients) // (clients // groups)
    owner = rng.permutation(np.arange(total) % groups)
    own = np.floor(share * census.sizes + 0.5).astype(np.int64)
    mine = distribute_evenly(own, group[:, None] == owner[None])
    return Allocation(mine + distribute_evenly(census.sizes - own, np.ones((clients, total), dtype=bool)), group)


def some_classes(
    census: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Classes, size: RowCount = None
) -> Allocation:
    """`classes` random classes a client in equal counts, `size` rows in all (default: as many as fit).

    Source: non-IID_1 of pFedLA (Ma et al., CVPR 2022). Every class is held by equally many clients (within
    one), the only way in which 100 clients of 600 rows fit in 60,000 images.
    """
    check_integer("classes", classes, 1, len(census.sizes))
    held = assign_classes(clients, len(census.sizes), classes, rng)
    return Allocation(allocate_rows(census.sizes, held / classes, size))


def listed(
    census: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Lists, size: RowCount = None
) -> Allocation:
    """The classes of every client, given one list each, in equal counts; `size` rows in all.

    Source: the planted neighbours in the figures of pFedLA (Ma et al., CVPR 2022).
    """
    del rng
    if not isinstance(classes, Sequence) or not all(isinstance(mine, Sequence) for mine in classes):
        raise BadInput(f"partition.classes: {classes!r} must be a list of lists of classes, one for each client")
    if len(classes) != clients or not all(classes):
        raise BadInput(f"partition.classes: {len(classes)} lists for {clients} clients; give each client one")
    held = np.zeros((clients, len(census.sizes)), dtype=bool)
    for row, mine in zip(held, classes, strict=True):
        row[[check_integer("classes", c, 0, len(row) - 1) for c in mine]] = True
    return Allocation(allocate_rows(census.sizes, held / held.sum(1, keepdims=True), size))


def dominant(
    census: ClassSizes,
    clients: int,
    rng: np.random.Generator,
    *,
    classes: Classes,
    dominance: Annotated[float, Above(0), AtMost(1), "share of a client's rows that these classes have"] = 0.5,
    size: RowCount = None,
) -> Allocation:
    """All classes, but `classes` random ones hold the share `dominance` of a client's `size` rows.

    Source: non-IID_2 of pFedLA (Ma et al., CVPR 2022), which leaves dominance and size open.
    """
    total = len(census.sizes)
    check_integer("classes", classes, 1, total - 1)
    held = assign_classes(clients, total, classes, rng)
    return Allocation(
        allocate_rows(census.sizes, np.where(held, dominance / classes, (1 - dominance) / (total - classes)), size)
    )


DEALERS: dict[str, Callable[..., Allocation]] = {
    "iid": iid,
    "shards": shards,
    "classes": some_classes,
    "listed": listed,
    "clusters": clusters,
    "dirichlet": dirichlet,
    "lda": lda,
    "superclass": superclass,
    "dominant": dominant,
    "grouped": grouped,
}
