"""Sparse fields in copies, pickles, files and checkpoints of trainings; offsets of sparse fields.

Random trees and programs do the same in `fuzz/sparse_trees.py` (its step "keep").
"""

import copy
import pickle

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import sparse_trees


@pytest.fixture(autouse=True)
def _start(quick_code):
    ds.init(arch=ds.cpu)


class Hall:
    """Fields of two trees: three in one, whose levels are shared in part, and a list."""

    def __init__(self):
        self.u, self.z = (ds.field(ds.f64, needs_grad=True, name=k) for k in "uz")
        self.w = ds.Vector.field(2, ds.f32, name="w")
        self.names = ds.field(ds.i32, name="names")
        self.block = ds.root.pointer(ds.ij, (4, 8))
        self.block.bitmasked(ds.ij, 2).place(self.u)
        self.block.bitmasked(ds.ij, 2).place(self.z)
        self.block.dense(ds.ij, 4).place(self.w)
        ds.root.dense(ds.j, 3).hash(ds.i, 2).dynamic(ds.k, 9, chunk_size=4).place(self.names)

    def fields(self):
        return self.u, self.z, self.w, self.names

    def write(self):
        self.u[3, 4], self.u[7, 15] = 2.0, -0.0
        self.u.grad[0, 0] = 5.0  # in a cell that is not active
        self.w[1, 1] = [3.0, 4.0]
        self.names[1, 2, 4] = 7
        return self

    def cells(self):
        return [[c._array().tolist() for c in f.tree[0].chain()] for f in self.fields()]

    def values(self):
        return [f.to_numpy().tolist() for f in (*self.fields(), self.u.grad)]


WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


@pytest.mark.parametrize("way", WAYS)
def test_copies_have_trees_of_their_own(way):
    hall = Hall().write()
    again = WAYS[way](hall)
    assert again.cells() == hall.cells()
    assert again.values() == hall.values()
    assert np.signbit(again.u[7, 15])
    assert again.u.node.above is again.block is again.w.node.above is not hall.block
    assert repr(again.names.node) == repr(hall.names.node)
    again.u[0, 0] = 1.0
    assert again.cells() != hall.cells()
    assert hall.u[0, 0] == 0
    builder = ds.FieldsBuilder()
    x = ds.field(ds.f32)
    builder.pointer(ds.i, 4).place(x)
    builder.finalize()
    x[2] = 1.0
    assert WAYS[way](x).to_numpy().tolist() == [0, 0, 1, 0]


def test_files_set_the_active_cells(tmp_path):
    path = tmp_path / "hall.npz"
    hall, other = Hall().write(), Hall()
    ds.save(path, hall.u, hall.w, hall.names, slope=hall.u.grad)
    other.u[0, 0] = other.z[7, 15] = other.z[6, 0] = 3.0
    other.w[4, 4] = [1.0, 1.0]
    ds.load(path, other.u, other.names, slope=other.u.grad)
    # What is not in an active block of the file is 0 everywhere; other levels keep what is inside.
    assert np.argwhere(other.z.to_numpy()).tolist() == [[7, 15]]
    assert not other.w.to_numpy().any()
    ds.load(path, other.w)
    hall.z[7, 15] = 3.0
    assert other.cells() == hall.cells()
    assert other.values() == hall.values()


def test_files_that_do_not_fit(tmp_path):
    path, hall = tmp_path / "hall.npz", Hall().write()
    dense, y = ds.field(ds.f64, shape=(8, 16)), ds.field(ds.f64)
    ds.root.pointer(ds.ij, (2, 4)).bitmasked(ds.ij, 4).place(y)
    small = ds.field(ds.f32)
    ds.root.pointer(ds.ij, (8, 16)).place(small)
    ds.save(path, hall.u, dense=dense)
    hall.u[6, 0] = 4.0
    ds.save(tmp_path / "later.npz", u=hall.u)
    parts = {key: a for key, a in np.load(path).items() if key != "dense"}
    np.savez(tmp_path / "mixed.npz", **parts, **{
        key.replace("u#", "z#"): a for key, a in np.load(tmp_path / "later.npz").items()
    })  # fmt: skip
    before = hall.values(), hall.cells()
    for fields, message in (
        ({"u": dense}, "u is in a sparse tree in .*, and dense is dense"),
        ({"dense": hall.u}, "dense is dense in .*, and u is in a sparse tree"),
        (
            {"u": y},
            r"another tree in .* here: ds.root.pointer\(ds.ij, \(4, 8\)\).*, not ds.root.pointer",
        ),
        ({"u": hall.w}, r"u has the shape \(8, 16\) in"),
        ({"u": small}, "u is float64 in .*, and small is f32"),
        ({"v": hall.u}, "holds no v; it holds u, dense"),
    ):
        with pytest.raises(ds.ArgumentError, match=message):
            ds.load(path, **fields)
    with pytest.raises(
        ds.FieldError, match=r"u and z are in one sparse tree, and .* other active cells"
    ):
        ds.load(tmp_path / "mixed.npz", hall.u, hall.z)
    assert (hall.values(), hall.cells()) == before
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    with pytest.raises(ds.FieldError, match="a tape records, and other cells"), ds.Tape(loss):
        ds.load(path, hall.u)
    with pytest.raises(ds.ArgumentError, match="and it is in a sparse"), ds.Tape(loss):
        copy.deepcopy(hall.u)
    hall.u.grad[0, 0] = 5.0  # tapes begin with gradients of 0
    for key, wrong in (
        ("u#runs", [[127, 2]]),
        ("u#runs", [[5, 2]]),  # in cells that are not active
        ("u#values", [1.0]),
        ("u#active0-runs", [[-1, 3]]),
        ("u#active1-values", [1, 1]),  # of another type
        ("u#tree", "{"),
    ):
        np.savez(tmp_path / "broken.npz", **(parts | {key: np.array(wrong)}))
        with pytest.raises(ds.FileError, match="does not hold a sparse field u"):
            ds.load(tmp_path / "broken.npz", u=hall.u)
    assert (hall.values(), hall.cells()) == before


def test_a_training_goes_on_from_its_file(tmp_path):
    def train(steps, out, resume=False):
        ds.init(arch=ds.cpu, default_fp=ds.f64)
        x = ds.field(ds.f64, needs_grad=True, name="x")
        ds.root.pointer(ds.i, 4).dense(ds.i, 2).place(x)
        loss = ds.field(ds.f64, shape=(), needs_grad=True, name="loss")

        @ds.kernel
        def miss():
            for i in x:
                loss[None] += (x[i] - 0.1 * i) ** 2

        x[5] = 1.0
        opt = ds.optim.Adam([x], lr=0.1)
        ds.optim.train(miss, opt, steps, loss, out, resume, checkpoint_every=0, progress=False)
        return x.to_numpy()

    whole = train(6, tmp_path / "whole")
    train(4, tmp_path / "parts")
    assert np.array_equal(train(6, tmp_path / "parts", resume=True), whole)
    assert whole[5] < 0.99
    assert np.flatnonzero(whole).tolist() == [4, 5]


def test_random_programs_keep_what_they_have():
    text = sparse_trees.make(12)
    kept = text.replace("total x 98", "keep x 1\nkeep x 2\nkeep x 3\nkeep x 6\ntotal x 98")
    assert kept != text
    assert sparse_trees.verdict(kept, 12) == "right"


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_offsets(arch):
    ds.init(arch=getattr(ds, arch), default_fp=ds.f64, debug=True)
    x, y = (ds.field(ds.f64, needs_grad=True) for _ in range(2))
    ds.root.pointer(ds.j, 4).dense(ds.i, 6).bitmasked(ds.j, 2).place(x, y, offset=(-3, -4))
    a, total = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))
    place = ds.field(ds.i32, shape=())

    @ds.kernel
    def put():
        for i in range(4):
            x[i - 3, 2 - i] += a[None] * a[None] * (i + 1)

    @ds.kernel
    def weigh():
        for I in ds.grouped(x):
            y[I] = 2 * x[I]
        for i, j in y:
            total[None] += y[i, j] * (i * 10 + j)

    @ds.kernel
    def ask():
        for _ in range(1):
            for i, j in x:  # in order
                place[None] += i * 100 + j

    a[None] = 2.0
    x[2, 3] = 0.5
    put()
    weigh()
    ask()
    lanes = [(i - 3, 2 - i) for i in range(4)]
    assert place[None] == sum(i * 100 + j for i, j in [*lanes, (2, 3)])
    want = np.zeros((6, 8))
    for k, (i, j) in enumerate(lanes):
        want[i + 3, j + 4] = 4.0 * (k + 1)
    want[5, 7] = 0.5
    assert np.array_equal(x.to_numpy(), want)
    assert np.array_equal(y.to_numpy(), 2 * want)
    with ds.Tape(total):
        put()
        weigh()
    assert a.grad[None] == sum(8 * (k + 1) * (i * 10 + j) for k, (i, j) in enumerate(lanes))
    again = pickle.loads(pickle.dumps(x))
    assert (again.origin, again[2, 3]) == ((-3, -4), 0.5)
    with pytest.raises(ds.AccessError):
        x[3, 0] = 1.0
