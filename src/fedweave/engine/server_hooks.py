"""The server's calls of a method's hooks, guarded: in the simulation and where clients are on hosts of their own."""

from torch import Tensor

from fedweave.engine.guards import returned
from fedweave.engine.guards.hook_calls import guard_call
from fedweave.engine.protocol import Method, Server, Stage, Start
from fedweave.tensors.products import use_fast_products
from fedweave.tensors.trees import Tree


def init(method: Method, start: Start) -> Server:
    """The server's state before round 0.

    Raises:
        BadInput: the hook writes into what it was given, or returns something else than a state; so do all functions
            here.
    """
    with guard_call(method, "init", start=start):
        server = method.init(start)
    returned.check_tensors(f"{type(method).__name__}.init", server)
    return server


def hand_over(stage: Stage, server: Server, start: Start) -> Server:
    """The server's state at the beginning of `stage`, from that of the stage before it."""
    if stage.handover is None:
        return server
    with guard_call(stage.method, "stages", server=server, start=start):
        return stage.handover(server, start)


def admit(method: Method, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
    """The server's state with the last clients, who uploaded `enrolled` [newcomers, ...]."""
    with guard_call(method, "admit", server=server, enrolled=enrolled, start=start):
        return method.admit(server, enrolled, newcomers, start)


def download(method: Method, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
    """What the clients `ids` [P] get: (for all of them, for each [P, ...])."""
    with guard_call(method, "download", server=server, ids=ids), use_fast_products(server):
        downloads = method.download(server, ids)
    hook = f"{type(method).__name__}.download"
    returned.check_pair(hook, downloads, "(what all clients receive, what each receives alone [P, ...])")
    returned.check_tensors(hook, downloads[0])
    returned.check_tensors(hook, downloads[1])
    rows = returned.shapes(downloads[1])
    way = f"return a row for each client of ids, [{len(ids)}, ...]"
    returned.check_form(hook, rows, {path: [len(ids), *shape[1:]] for path, shape in rows.items()}, way)
    return downloads


def aggregate(
    method: Method, server: Server, senders: Tensor, uploads: Tree, weights: Tensor, own: Tree, frozen: bool = False
) -> Server:
    """The server's state after the `uploads` [P, ...] of `senders` [P].

    Args:
        weights: of the uploads in a mean [P].
        own: downloads of each client of the round, which the method may have made them from.
        frozen: the server learns nothing more but what concerns newcomers.
    """
    hook = "settle" if frozen else "aggregate"
    given = {"server": server, "ids": senders, "uploads": uploads, "weights": weights, "downloads": own}
    with guard_call(method, hook, **given), use_fast_products(server, uploads):
        new_server = getattr(method, hook)(server, senders, uploads, weights)
    name, old = type(method).__name__, returned.shapes(server)
    returned.check_tensors(f"{name}.aggregate", new_server)
    # A run can continue from any state, and newcomers add rows to its tables, which needs one form in all rounds.
    way = f"keep the names and shapes of {name}.init"
    returned.check_form(f"{name}.aggregate", returned.shapes(new_server), old, way, method.resized)
    return new_server
