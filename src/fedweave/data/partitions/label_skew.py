"""Label skews: how many rows of each class every client gets.

An allocator maps the class sizes to a table of counts [N, C]. The rows themselves are drawn afterwards. Legend:
N clients, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from fedweave.data.partitions.checks import check_integer
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
    """What an allocator knows about the rows: their classes."""

    counts: np.ndarray  # [C] rows of each class
    parents: np.ndarray | None  # [C] superclass of each class


class Allocation(NamedTuple):
    """How many rows of each class every client gets."""

    counts: np.ndarray  # [N, C] int64
    group: np.ndarray | None = None  # [N] planted group
    shares: np.ndarray | None = None  # [N, C] class probabilities the counts were drawn from


def iid(class_sizes: ClassSizes, clients: int, rng: np.random.Generator) -> Allocation:
    """A random permutation of all rows cut in N parts whose sizes differ by at most one."""
    labels = rng.permutation(np.repeat(np.arange(len(class_sizes.counts)), class_sizes.counts))
    parts = np.array_split(labels, clients)
    return Allocation(np.stack([np.bincount(part, minlength=len(class_sizes.counts)) for part in parts]))


def shards(class_sizes: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Classes) -> Allocation:
    """At most `classes` classes a client: every class is cut in equal shards, which are shuffled and distributed.

    Source: the pathological setting of FedAGHN (Song et al., AAAI 2025); songjiarui00/FedAGHN. A client may
    get two shards of one class; rows that do not fill a shard are left out.
    """
    total = len(class_sizes.counts)
    check_integer("classes", classes, 1, total)
    if classes * clients % total:
        raise BadInput(f"partition.clients: {clients} x {classes} shards are not a multiple of {total} classes")
    per_class = classes * clients // total
    if per_class > class_sizes.counts.min():
        raise BadInput(
            f"partition.clients: {per_class} shards a class, but the smallest has {class_sizes.counts.min()} rows"
        )
    shard_classes = rng.permutation(np.repeat(np.arange(total), per_class)).reshape(clients, classes)
    shard_counts = np.stack([np.bincount(row, minlength=total) for row in shard_classes])
    return Allocation(shard_counts * (class_sizes.counts // per_class))


def clusters(class_sizes: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Classes) -> Allocation:
    """Clients in C / `classes` clusters; a cluster owns its classes and shares them evenly.

    Source: the pathological setting of pFedGraph (Ye et al., ICML 2023), used by pFedGAT;
    MediaBrain-SJTU/pFedGraph.
    """
    del rng
    total = len(class_sizes.counts)
    check_integer("classes", classes, 1, total)
    count = total // classes
    if total % classes or clients % count:
        raise BadInput(
            f"partition.clients: {clients} clients do not fill clusters of {classes} of {total} classes; "
            f"classes must divide {total} and clients must be a multiple of {max(1, count)}"
        )
    group = np.arange(clients) % count
    owner = np.arange(total) // classes
    return Allocation(distribute_evenly(class_sizes.counts, group[:, None] == owner[None]), group)


def dirichlet(
    class_sizes: ClassSizes,
    clients: int,
    rng: np.random.Generator,
    *,
    beta: Concentration,
    balance: Annotated[bool, "nothing more for clients that hold rows / N"] = True,
    minimum: Annotated[int, AtLeast(0), "rows of the smallest client"] = 10,
    attempts: Annotated[int, AtLeast(1), "draws until every client has so many"] = 1000,
) -> Allocation:
    """Every class is divided between clients by a draw from Dir(`beta` * 1_N); redrawn until all have `minimum` rows.

    `balance` sets the share of clients that already hold rows / N or more to 0. Source: Hsu et al. (2019) in the
    form of songjiarui00/FedAGHN and MediaBrain-SJTU/pFedGraph.
    """
    check_integer("minimum", minimum, 0, int(class_sizes.counts.sum()) // clients)
    for _ in range(attempts):
        counts = _draw_dirichlet(class_sizes.counts, clients, float(beta), balance, rng)
        if counts is not None and counts.sum(1).min() >= minimum:
            return Allocation(counts)
    raise BadInput(
        f"partition.beta: no draw of Dir({beta}) in {attempts} gave each of {clients} clients its minimum ({minimum}); "
        "raise beta, or lower minimum or clients"
    )


def _draw_dirichlet(
    sizes: np.ndarray, clients: int, beta: float, balance: bool, rng: np.random.Generator
) -> np.ndarray | None:
    """One Dirichlet draw [N, C]; None if no client can take a class."""
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    for c, size in enumerate(sizes):
        share = rng.dirichlet(np.full(clients, beta))
        if balance:
            share = share * (counts.sum(1) < sizes.sum() / clients)
        if not share.sum() > 0:
            return None
        counts[:, c] = split_proportionally(share, int(size))
    return counts


def lda(class_sizes: ClassSizes, clients: int, rng: np.random.Generator, *, alpha: Concentration) -> Allocation:
    """Equal sizes; client k draws its rows without replacement from pi_k ~ Dir(`alpha` * 1_C).

    Source: balanced latent Dirichlet allocation of adap/flower's baseline utilities, used by SHN (Nguyen et
    al.).
    """
    shares = rng.dirichlet(np.full(len(class_sizes.counts), float(alpha)), size=clients)
    return Allocation(draw_counts(class_sizes.counts, shares, rng), shares=shares)


def draw_counts(sizes: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts [N, C] of equal row sums drawn from `shares` [N, C]; a class without rows left gets probability 0."""
    remaining = sizes.copy()
    counts = np.zeros(shares.shape, dtype=np.int64)
    for row, share, size in zip(counts, shares, split_evenly(int(sizes.sum()), len(shares)), strict=True):
        while row.sum() < size:
            weight = np.where(remaining > 0, share + 1e-5, 0.0)
            draws = rng.choice(len(sizes), size=size - row.sum(), p=weight / weight.sum())
            draws = draws[: _count_usable_draws(draws, remaining)]
            increment = np.bincount(draws, minlength=len(sizes))
            row += increment
            remaining -= increment
    return counts


def _count_usable_draws(draws: np.ndarray, remaining: np.ndarray) -> int:
    """How many of the `draws` can be used until a class has no rows left."""
    used = np.zeros_like(remaining)
    for position, c in enumerate(draws):
        used[c] += 1
        if used[c] == remaining[c]:
            return position + 1
    return len(draws)


def superclass(class_sizes: ClassSizes, clients: int, rng: np.random.Generator) -> Allocation:
    """N / S clients for each of S superclasses share its rows evenly, stratified by class.

    Source: Cluster-CIFAR100 of SHN (Nguyen et al.), client k belongs to superclass k // 5 of 20.
    """
    del rng
    if class_sizes.parents is None:
        raise BadInput("partition.name: superclass needs a data set with superclasses (cifar100)")
    count = int(class_sizes.parents.max()) + 1
    if clients % count:
        raise BadInput(f"partition.clients: {clients} is not a multiple of {count} superclasses")
    group = np.arange(clients) // (clients // count)
    return Allocation(distribute_evenly(class_sizes.counts, group[:, None] == class_sizes.parents[None]), group)


def grouped(
    class_sizes: ClassSizes, clients: int, rng: np.random.Generator, *, groups: Groups = 5, share: GroupShare = 0.8
) -> Allocation:
    """Planted groups: `share` of a class goes to its group, the rest to all clients, evenly in both cases.

    Source: the case study of FedAGHN (Song et al., AAAI 2025).
    """
    total = len(class_sizes.counts)
    check_integer("groups", groups, 1, min(clients, total))
    if total % groups or clients % groups:
        raise BadInput(f"partition.groups: {groups} must divide {clients} clients and {total} classes")
    group = np.arange(clients) // (clients // groups)
    owner = rng.permutation(np.arange(total) % groups)
    group_rows = np.floor(share * class_sizes.counts + 0.5).astype(np.int64)
    group_counts = distribute_evenly(group_rows, group[:, None] == owner[None])
    common_counts = distribute_evenly(class_sizes.counts - group_rows, np.ones((clients, total), dtype=bool))
    return Allocation(group_counts + common_counts, group)


def some_classes(
    class_sizes: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Classes, size: RowCount = None
) -> Allocation:
    """`classes` random classes a client in equal counts, `size` rows in all (default: as many as fit).

    Source: non-IID_1 of pFedLA (Ma et al., CVPR 2022). Every class is held by equally many clients (within
    one), the only way in which 100 clients of 600 rows fit in 60,000 images.
    """
    check_integer("classes", classes, 1, len(class_sizes.counts))
    holds = assign_classes(clients, len(class_sizes.counts), classes, rng)
    return Allocation(allocate_rows(class_sizes.counts, holds / classes, size))


def listed(
    class_sizes: ClassSizes, clients: int, rng: np.random.Generator, *, classes: Lists, size: RowCount = None
) -> Allocation:
    """The classes of every client, given one list each, in equal counts; `size` rows in all.

    Source: the planted neighbours in the figures of pFedLA (Ma et al., CVPR 2022).
    """
    del rng
    if not isinstance(classes, Sequence) or not all(isinstance(client_classes, Sequence) for client_classes in classes):
        raise BadInput(f"partition.classes: {classes!r} must be a list of lists of classes, one for each client")
    if len(classes) != clients or not all(classes):
        raise BadInput(f"partition.classes: {len(classes)} lists for {clients} clients; give each client one")
    holds = np.zeros((clients, len(class_sizes.counts)), dtype=bool)
    for row, client_classes in zip(holds, classes, strict=True):
        row[[check_integer("classes", c, 0, len(row) - 1) for c in client_classes]] = True
    return Allocation(allocate_rows(class_sizes.counts, holds / holds.sum(1, keepdims=True), size))


def dominant(
    class_sizes: ClassSizes,
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
    total = len(class_sizes.counts)
    check_integer("classes", classes, 1, total - 1)
    holds = assign_classes(clients, total, classes, rng)
    weight = np.where(holds, dominance / classes, (1 - dominance) / (total - classes))
    return Allocation(allocate_rows(class_sizes.counts, weight, size))


ALLOCATORS: dict[str, Callable[..., Allocation]] = {
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
