"""Tables with rows in files: the values of dense tensors, unchanged older versions, and files of bounded size."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jvp, vmap

from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors, save_tensors
from fedweave.tensors import row_files, storage, tables, trees
from fedweave.tensors.storage import Storage
from fedweave.tensors.tables import Table

CLIENTS = 7


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files grow by three rows, and a block has two, so that there are several of each."""
    monkeypatch.setattr(storage, "SEGMENT", 3 * 6 * 8)
    monkeypatch.setattr(tables, "BLOCK", 2 * 6 * 8)


@pytest.fixture
def files(tmp_path: Path) -> Storage:
    """An empty storage."""
    return Storage(tmp_path / "rows")


def pair(files: Storage) -> tuple[Table, Tensor]:
    """A table of seven rows [2, 3] and the same as a tensor."""
    row = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = files.create_table(row, CLIENTS)
    assert isinstance(table, Table)
    return table, row.expand(CLIENTS, 2, 3).clone()


def with_new_rows(table: Tensor, dense: Tensor, draws: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The table and the tensor with new rows of some clients."""
    ids = torch.from_numpy(draws.permutation(CLIENTS)[: draws.integers(1, CLIENTS + 1)])
    rows = torch.from_numpy(draws.normal(size=(len(ids), 2, 3)))
    return trees.put(table, ids, rows), trees.put(dense, ids, rows)


def test_any_sequence_of_changes_gives_the_values_of_a_tensor(files: Storage) -> None:
    """Every earlier version in use keeps its values. Slots of unused versions are reused."""
    draws, (table, dense) = np.random.default_rng(1), pair(files)
    versions = [(table, dense)]
    for _ in range(60):
        table, dense = with_new_rows(table, dense, draws)
        versions = [*versions, (table, dense)]
        versions = [versions[i] for i in sorted(draws.permutation(len(versions))[:4])]  # the others are freed
        for one, expected in versions:
            assert torch.equal(one.to_tensor(), expected)
    capacity = len(table.version.rows.references)
    assert capacity <= 6 * CLIENTS, "at most five versions were in use at once, and one was being made"
    del versions, one
    assert (table.version.rows.references > 0).sum() == CLIENTS


def test_supported_functions_read_no_complete_table(files: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, mixtures, products and newcomers have the values of a tensor, and no complete table is in memory."""
    table, dense = with_new_rows(*pair(files), np.random.default_rng(2))
    ids, mask = torch.tensor([5, 0, 5]), torch.arange(CLIENTS) % 2 == 0
    weights, x = torch.rand(4, CLIENTS, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(Table, "to_tensor", lambda table: pytest.fail("the whole table was read"))
        rows = [
            trees.take(table, ids),
            table[mask],
            table[2:5],
            table[-1],
            trees.at(table, 3),
            table.index_select(0, ids),
        ]
        mixed, single = torch.tensordot(weights, table, dims=1), trees.mix_rows(table, weights[0])
        products, squares = tables.products(x, table.flatten(1))
        shifted, lengths = tables.products(x, table, table.default)
        norms = trees.norms({"a": table, "b": table})
        sums = [float(one.sum()) for one in (table, table[:0], files.create_table(table.default, 2))]
        other = trees.put(table, ids[:1], table[:1] + 1)
        assert (torch.equal(table, trees.put(table, ids[:1], table[5:6])), torch.equal(table, other)) == (True, False)
        longer = torch.cat([table, x[:, None].expand(2, 2, 6)[..., :3]])
        again = trees.grow(table, files.create_table(table.default, CLIENTS + 2))
        assert isinstance(longer, Table)
        assert table.to(table) is table
        assert (table.shape, len(table), table.dtype, table.nbytes) == ((7, 2, 3), 7, torch.float64, dense.nbytes)
    expected = [dense[ids], dense[mask], dense[2:5], dense[-1], dense[3], dense[ids]]
    assert all(torch.equal(a, b) for a, b in zip(rows, expected, strict=True))
    flat = dense.flatten(1)
    torch.testing.assert_close(mixed, torch.tensordot(weights, dense, dims=1))
    torch.testing.assert_close(single, (weights[0] @ flat).reshape(2, 3))
    torch.testing.assert_close(products, x @ flat.T)
    torch.testing.assert_close(squares, flat.square().sum(1))
    away = (dense - table.default).flatten(1)
    torch.testing.assert_close(shifted, x @ away.T)
    torch.testing.assert_close(lengths, away.square().sum(1))
    assert sums == pytest.approx([float(dense.sum()), 0.0, 2 * float(table.default.sum())])
    torch.testing.assert_close(norms, (2 * flat.square().sum(1)).sqrt())
    assert torch.equal(longer.to_tensor()[:CLIENTS], dense)
    assert torch.equal(longer[CLIENTS:], x[:, None].expand(2, 2, 6)[..., :3])
    assert torch.equal(again[:CLIENTS], dense)
    assert torch.equal(again[CLIENTS:], table.default.expand(2, 2, 3))


def test_the_gradient_of_a_mixture_is_that_of_a_tensor(files: Storage) -> None:
    table, dense = with_new_rows(*pair(files), np.random.default_rng(3))
    weights = torch.rand(3, CLIENTS, dtype=torch.float64, requires_grad=True)
    mine, theirs = (
        torch.autograd.grad(torch.tensordot(weights, t, dims=1).square().sum(), weights) for t in (table, dense)
    )
    torch.testing.assert_close(mine, theirs)


def test_any_other_function_gets_a_tensor(files: Storage) -> None:
    """Arithmetic, statistics, pickling."""
    table, dense = with_new_rows(*pair(files), np.random.default_rng(4))
    for made in (
        table + 1 - 1,
        (table * 1.0),
        torch.stack([table])[0],
        table.clone(),
        torch.where(table > 0, table, table),
    ):
        assert type(made) is Tensor
        torch.testing.assert_close(made, dense)
    assert float(table.sum()) == pytest.approx(float(dense.sum()))
    assert (table.numpy() == dense.numpy()).all()
    assert table.tolist() == dense.tolist()


def test_a_checkpoint_keeps_its_rows(files: Storage, tmp_path: Path) -> None:
    """It keeps them for any later writes of a process. A process that continues from it reads the same rows, and
    removes unused ones.
    """
    draws, (table, dense) = np.random.default_rng(5), pair(files)
    table, dense = with_new_rows(table, dense, draws)
    blank = files.create_table(torch.zeros(4), CLIENTS)
    files.flush()
    files.retain("first", {"a": table})
    save_tensors(tmp_path / "first.pt", storage.tables_to_records(({"a": table, "b": blank}, 3)))
    expected, later = dense, (table, dense)
    for _ in range(20):
        later = with_new_rows(*later, draws)
    lost = files.create_table(torch.ones(5), CLIENTS).index_copy(0, torch.tensor([1]), torch.zeros(1, 5))
    assert isinstance(lost, Table)
    other = Storage(files.folder)
    state, number = storage.records_to_tables(load_tensors(tmp_path / "first.pt"), other)
    assert number == 3
    assert torch.equal(state["a"].to_tensor(), expected)
    assert torch.equal(state["b"].to_tensor(), torch.zeros(CLIENTS, 4))
    other.remove_unused_files()
    assert not [*files.folder.glob(lost.version.rows.path.name)]
    after, more = with_new_rows(state["a"], expected, draws)
    assert torch.equal(after[:], more)
    assert torch.equal(state["a"].to_tensor(), expected)
    files.release("first")
    del table
    for _ in range(20):
        later = with_new_rows(*later, draws)
    assert not torch.equal(state["a"].to_tensor(), expected), "released rows are overwritten"


def test_damaged_files_are_refused(files: Storage) -> None:
    """A missing file, and one with fewer rows."""
    table, _ = with_new_rows(*pair(files), np.random.default_rng(6))
    record = storage.tables_to_records(table)
    path, needed = table.version.rows.path, int(table.version.slots.max()) + 1
    path.write_bytes(path.read_bytes()[: needed * 6 * 8 - 1])
    with pytest.raises(ValueError, match=f"{needed - 1} of {needed} rows"):
        storage.records_to_tables(record, Storage(files.folder))
    path.unlink()
    with pytest.raises(OSError, match=path.name):
        storage.records_to_tables(record, Storage(files.folder))


def test_a_full_disk_is_reported_in_one_line(files: Storage) -> None:
    """A limit on the size of files replaces the full disk. Earlier content is unchanged."""
    table, dense = with_new_rows(*pair(files), np.random.default_rng(7))
    versions = [(table, dense)]

    def fill() -> None:
        for seed in range(20):
            versions.append(with_new_rows(*versions[-1], np.random.default_rng(seed)))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    try:
        with pytest.raises(BadInput, match=r"\.rows: no room for the tables of all clients") as caught:
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert all(torch.equal(one.to_tensor(), expected) for one, expected in versions)


def test_single_numbers_stay_in_memory(files: Storage) -> None:
    """A number per client does not become a table, and neither does a type that NumPy lacks."""
    for row in (torch.tensor(1.0), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(0)):
        made = files.create_table(row, CLIENTS)
        assert type(made) is Tensor
        assert made.shape == (CLIENTS, *row.shape)
    assert row_files.DTYPES.keys() >= {torch.float32, torch.float64, torch.int64}
    assert trees.build_table({"a": torch.ones(2)}, 3)["a"].tolist() == [[1.0, 1.0]] * 3


def test_a_new_table_uses_no_file_of_an_earlier_process(files: Storage, tmp_path: Path) -> None:
    """This holds even if only the later tables of that process are in its checkpoint."""
    first, (table, dense) = files.create_table(torch.ones(2, 3).double(), CLIENTS), pair(files)
    table, dense = with_new_rows(table, dense, np.random.default_rng(8))
    files.flush()
    save_tensors(tmp_path / "state.pt", storage.tables_to_records({"a": table}))
    other = Storage(files.folder)
    state = storage.records_to_tables(load_tensors(tmp_path / "state.pt"), other)
    with_new_rows(other.create_table(torch.zeros(2, 3).double(), CLIENTS), dense, np.random.default_rng(9))
    assert torch.equal(state["a"].to_tensor(), dense)
    assert isinstance(first, Table)


def test_space_for_a_row_is_allocated_before_it_is_written(files: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file is sparse, and writing to it on a full disk would end the process."""
    table, _ = pair(files)
    rows, allocated = table.version.rows, set()

    def allocate(handle: int, first: int, length: int) -> None:
        allocated.update(range(first, first + length))

    monkeypatch.setattr(row_files.os, "posix_fallocate", allocate)
    for written in range(1, CLIENTS + 1):
        rows.retain(rows.write(torch.ones(1, 6)).numpy())
        assert allocated == {*range(written * 6 * 8)}


def test_rows_of_newcomers_are_compared_with_the_default(files: Storage) -> None:
    """A row that differs from it in one number is stored. An equal one needs no slot."""
    table, dense = pair(files)
    rows = table.default.expand(2, 2, 3).clone()
    rows[1, 0, 0] += 1.0
    longer = torch.cat([table, rows])
    assert isinstance(longer, Table)
    assert torch.equal(longer.to_tensor(), torch.cat([dense, rows]))
    assert longer.version.slots.tolist() == [-1] * 8 + [0]


def test_rows_of_a_checkpoint_outlive_its_tables(files: Storage, tmp_path: Path) -> None:
    """Until the checkpoint is released, no other row uses their slots, even if the process has no such table."""
    draws, (table, dense) = np.random.default_rng(5), pair(files)
    table, expected = later = with_new_rows(table, dense, draws)
    files.retain("first", {"a": table})
    save_tensors(tmp_path / "first.pt", storage.tables_to_records({"a": table}))
    del table
    for _ in range(20):
        later = with_new_rows(*later, draws)
    files.flush()
    state = storage.records_to_tables(load_tensors(tmp_path / "first.pt"), Storage(files.folder))
    assert torch.equal(state["a"].to_tensor(), expected)


def test_growing_a_table_changes_no_argument() -> None:
    """Old values are in the leading corner, and new ones around it."""
    old, fresh = torch.ones(2, 2), torch.zeros(3, 3)
    assert trees.grow({"a": old}, {"a": fresh})["a"].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert not fresh.any()


def test_a_version_may_be_freed_inside_of_a_derivative(files: Storage) -> None:
    """Python frees it wherever it collects garbage, and its slots are free again."""
    table, _ = pair(files)
    versions = [table.with_rows(torch.tensor([0, 2]), torch.ones(2, 2, 3))]
    rows = table.version.rows
    assert rows.references.sum() == 2

    def free(x: Tensor) -> Tensor:
        versions.clear()
        return 2 * x

    vmap(lambda x: jvp(free, (x,), (x,))[1])(torch.ones(2))
    assert rows.references.sum() == 0


def test_a_row_is_written_again_if_it_has_changed(files: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LARGE", 1)
    table = pair(files)[0].with_rows(torch.tensor([1]), torch.ones(1, 2, 3, dtype=torch.float64))
    row = table.read_row(1)
    assert files.store_rows(row).version.slots.tolist() == table.version.slots[1:2].tolist()
    row.add_(1)
    changed = files.store_rows(row)
    assert changed.version.slots.tolist() != table.version.slots[1:2].tolist()
    assert torch.equal(tables.join_rows([changed])[0], row)
    assert table[1].unique().tolist() == [1.0]
