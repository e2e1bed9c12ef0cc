"""Sparse layout trees: pointer, hash, bitmasked and dynamic nodes, in kernels and from Python.

Values that depend on Taichi's rules (what an index of a node counts, what a store past the end of a list
does, what `fill` and `from_numpy` reach) are those that Taichi 1.7.4 gives.
"""

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.memory import reserved
from tests.fuzz import sparse_trees


@pytest.fixture(autouse=True)
def _start(quick_code):
    ds.init(arch=ds.cpu)


def blocks_and_cells():
    x = ds.field(ds.f32)
    block = ds.root.pointer(ds.ij, (4, 4))
    cell = block.bitmasked(ds.ij, (2, 2))
    cell.place(x)
    return x, block, cell


@pytest.mark.parametrize(("seed", "arch"), [(4, "cpu"), (1, "python"), (8, "python")])
def test_random_programs(seed, arch):
    text = sparse_trees.make(seed)
    assert sparse_trees.verdict(text, seed, arch=getattr(ds, arch)) in ("right", "refused")


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_cells_of_a_node_are_counted_at_its_own_resolution(arch):
    ds.init(arch=getattr(ds, arch))
    x, block, cell = blocks_and_cells()
    found = ds.field(ds.i32, shape=8)
    seen = ds.field(ds.i32, shape=(4, 4))

    @ds.kernel
    def ask():
        x[2, 3] = 2.0
        x[5, 4] = 4.0
        found[0] = ds.cast(ds.is_active(block, [2, 3]), ds.i32)
        found[1] = ds.cast(ds.is_active(block, [1, 1]), ds.i32)
        found[2] = ds.cast(ds.is_active(x.parent(), [2, 3]), ds.i32)
        found[3] = ds.cast(ds.is_active(cell, [2, 2]), ds.i32)
        I = ds.rescale_index(x, block, ds.Vector([5, 4]))
        found[4] = 10 * I[0] + I[1]
        for i, j in block:
            seen[i, j] += 1
        for i, j in x:
            found[5] += 100 * i + 10 * j + ds.cast(x[i, j], ds.i32)

    @ds.kernel
    def clear():
        ds.deactivate(block, [1, 1])
        found[6] = ds.cast(ds.is_active(cell, [2, 3]), ds.i32)
        ds.activate(block, [0, 0])
        found[7] = ds.cast(ds.is_active(block, [0, 0]), ds.i32)

    ask()
    assert found.to_numpy().tolist() == [0, 1, 1, 0, 22, 232 + 544, 0, 0]
    assert np.argwhere(seen.to_numpy()).tolist() == [[1, 1], [2, 2]]
    x.from_numpy(np.ones((8, 8), np.float32))
    assert x.to_numpy().sum() == 2  # active cells alone
    clear()
    assert found.to_numpy().tolist()[6:] == [0, 1]
    assert x.to_numpy().sum() == 1
    x.fill(3)
    assert x.to_numpy().sum() == 3
    block.deactivate_all()
    assert x.to_numpy().sum() == 0
    assert (x.parent(2), x.snode.parent(), block.shape, cell.shape) == (block, cell, (4, 4), (8, 8))
    x[7, 0] = 5.0
    assert x[7, 0] == x.to_numpy().sum() == 5


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_lists(arch):
    ds.init(arch=getattr(ds, arch), debug=arch == "cpu")
    y, lengths, n = ds.field(ds.i32), ds.field(ds.i32, shape=4), ds.field(ds.i32, shape=())
    lists = ds.root.dense(ds.i, 4).dynamic(ds.j, 64, chunk_size=8)
    lists.place(y)

    @ds.kernel
    def fill():
        for i in range(4):
            for k in range(3 * i):
                y[i].append(k)

    @ds.kernel
    def look(which: ds.i32):
        if which == 1:
            lengths[0] = ds.append(lists, [1], 7)
            y[0, 5] = 1
        if which == 2:
            y[2].deactivate()
            ds.deactivate(lists, 3)
        for i in range(4):
            lengths[i] = ds.length(lists, i) + 0 * y[i].length()
        for i, j in y:
            n[None] += 1

    fill()
    look(0)
    assert lengths.to_numpy().tolist() == [0, 3, 6, 9]
    assert n[None] == 18
    look(1)
    assert lengths.to_numpy().tolist() == [6, 4, 6, 9]
    assert y.to_numpy()[1, :5].tolist() == [*sorted(y.to_numpy()[1, :3]), 7, 0]
    look(2)
    assert lengths.to_numpy().tolist() == [6, 4, 0, 0]
    assert n[None] == 18 + 25 + 10
    assert not y.to_numpy()[2:].any()


def test_full_lists():
    y = ds.field(ds.i32)
    ds.root.dynamic(ds.i, 5, chunk_size=2).place(y)
    n = ds.field(ds.i32, shape=())

    @ds.kernel
    def fill():
        for k in range(9):
            y[()].append(k + 1)
        n[None] = y[()].length()

    fill()
    assert n[None] == 5
    assert (y.to_numpy() > 0).all()
    ds.init(arch=ds.cpu, debug=True)
    with pytest.raises(ds.AccessError, match="list of a dynamic is full"):
        fill()


def test_structs_in_lists():
    Particle = ds.types.struct(pos=ds.math.vec2, mass=ds.f32)
    p = Particle.field()
    ds.root.dynamic(ds.i, 100).place(p)
    total = ds.field(ds.f32, shape=())

    @ds.kernel
    def run():
        for k in range(10):
            p.append(Particle(pos=ds.math.vec2(k, 1), mass=2.0))
        for i in p:
            total[None] += p[i].pos.x + p[i].mass

    run()
    assert total[None] == 45 + 20


def test_memory_is_that_of_what_is_written():
    x = ds.field(ds.f32, needs_grad=True)
    block = ds.root.pointer(ds.ijk, 64).dense(ds.ijk, 8)  # 512 MB
    block.place(x)

    @ds.kernel
    def run(n: ds.i32):
        for i, j, k in ds.ndrange(n, n, n):
            x[i + 200, j + 200, k + 200] = 1.0

    run(4)
    assert x[201, 201, 201] == 1
    assert x[0, 0, 0] == 0
    if reserved._DISCARD is not None:
        assert x.storage.resident < 1 << 20
        block.parent().deactivate_all()
        block.parent().deactivate_all()  # pages that were not used in between are given back
        assert x.storage.resident == 0
    assert x[201, 201, 201] == 0
    with pytest.raises(ds.OutOfMemoryError, match="there is no memory"):
        ds.root.pointer(ds.ijk, 1024).dense(ds.ijk, 1024).place(ds.field(ds.f64))


def test_pages_that_come_back_stay_for_a_while():
    """An adjoint leaves gradients of 0 behind: it gets their pages anew only until that was seen."""
    x = ds.field(ds.f32)
    ds.root.pointer(ds.ij, 32).dense(ds.ij, 32).place(x)  # a row is a page
    x[0, 0] = 1.0
    storage = x.storage
    told = reserved._DISCARD is not None and reserved._backed(storage.address, 1) is not None
    if not told or reserved._PAGE != 4096:
        pytest.skip("the system does not tell which pages there are")
    storage.fill(0)
    storage.fill(0)
    assert storage.resident == 0
    seen = []
    for turn in range(3 * reserved._PATIENCE):
        # Row 3 is used in each turn but the last ones, row 5 once; row 7 holds numbers in the end.
        for row in [3] * (turn < 2 * reserved._PATIENCE) + [5] * (turn == 0):
            storage.array[row] = 2.0
            storage.array[row] = 0.0
        storage.array[7] = 1.0
        storage.fill(0)
        assert not storage.to_numpy().any()
        seen.append([a // reserved._PAGE for a, _ in storage.runs(0, storage.layout.nbytes)])
    assert seen[:3] == [[7], [3, 7], [3, 7]]
    assert (
        sum(rows == [3, 7] for rows in seen[: 2 * reserved._PATIENCE]) >= 2 * reserved._PATIENCE - 4
    )
    assert seen[-1] == [7]


def test_a_loop_does_not_visit_what_it_activates_itself():
    x, n = ds.field(ds.i32), ds.field(ds.i32, shape=())
    ds.root.pointer(ds.i, 16).dense(ds.i, 4).place(x)

    @ds.kernel
    def spread():
        for i in x:
            n[None] += 1
            if i + 4 < 64:
                x[i + 4] = x[i] + 1

    x[0] = 1
    for expected in (4, 12, 24):
        spread()
        assert n[None] == expected


def test_loops_in_order_and_loops_in_loops():
    x, at = ds.field(ds.f64, needs_grad=True), ds.field(ds.i32, shape=9)
    block = ds.root.pointer(ds.i, 8)
    block.dense(ds.i, 4).place(x)
    total = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def run():
        for t in range(3):
            for i in x:
                total[None] += t * i * x[i]

    @ds.kernel
    def order():
        c = 0
        ds.loop_config(serialize=True)
        for i in x:
            at[c] = i
            c += 1

    @ds.kernel
    def clear():
        ds.deactivate(block, 1)

    x[30] = x[5] = 1.0
    order()
    assert at.to_numpy().tolist() == [4, 5, 6, 7, 28, 29, 30, 31, 0]
    run()
    assert total[None] == 3 * 35
    total.grad[None] = 1.0
    run.grad()
    np.testing.assert_array_equal(np.flatnonzero(x.grad.to_numpy()), at.to_numpy()[:8])
    clear()
    later = ds.field(ds.f64)
    block.dense(ds.i, 4).place(later)
    later[5] = 7.0
    clear()  # is compiled anew, for the field that it did not know
    assert (later[5], x[5], x[30]) == (0, 0, 1)


class TestGradients:
    @pytest.fixture(autouse=True)
    def _program(self):
        ds.init(arch=ds.cpu)
        self.x, self.y = (ds.field(ds.f64, needs_grad=True) for _ in "xy")
        self.block = ds.root.pointer(ds.i, 8)
        self.block.dense(ds.i, 4).place(self.x, self.y)
        self.p = ds.field(ds.f64, shape=3, needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x, y, p, loss = self.x, self.y, self.p, self.loss

        @ds.kernel
        def scatter(first: ds.i32):
            for k in range(3):
                x[first + 5 * k] += p[k] * p[k]

        @ds.kernel
        def step():
            for i in x:
                y[i] = ds.sin(x[i]) * (i + 1)
                loss[None] += y[i] + x[i - 1] * x[i] if i > 0 else y[i]

        self.scatter, self.step = scatter, step
        p.from_numpy(np.array([0.5, 1.5, 2.5]))

    def run(self):
        self.x.fill(0)
        self.loss[None] = 0
        self.scatter(2)
        self.step()

    def test_the_set_is_fixed(self):
        with ds.Tape(self.loss):
            self.scatter(2)  # activates, before the loop over what is active
            self.step()
        p = self.p.to_numpy()
        np.testing.assert_allclose(
            self.p.grad.to_numpy(), np.cos(p * p) * 2 * p * np.array([3, 8, 13]), rtol=1e-12
        )

    @pytest.mark.parametrize("how", ["kernel", "python", "clear"])
    def test_the_set_changes_after_the_loop(self, how):
        def change():
            if how == "kernel":
                self.scatter(20)
            elif how == "python":
                self.y[31] = 0.0
            else:
                self.block.deactivate_all()

        with pytest.raises(
            ds.GlobalDataAccessError, match="needs the cells that were active"
        ) as no:
            with ds.Tape(self.loss, in_place="save"):
                self.scatter(2)
                self.step()
                change()
        assert {"kernel": "x[first", "python": "self.y[31]", "clear": "deactivate_all()"}[
            how
        ] in str(no.value)

    def test_tapes_that_run_again(self):
        self.run()
        self.x.fill(0)
        self.loss[None] = 0
        tape = ds.Tape(self.loss, in_place="save")
        with tape:
            self.scatter(2)
            self.step()
        first = self.p.grad.to_numpy()
        self.x.fill(0)
        self.loss[None] = 0
        self.p.grad.fill(0)
        tape.replay()
        tape.backward()
        np.testing.assert_allclose(self.p.grad.to_numpy(), first, rtol=1e-12)
        self.block.deactivate_all()
        tape.replay()
        with pytest.raises(ds.GlobalDataAccessError, match="needs the cells that were active"):
            tape.backward()

    @pytest.mark.parametrize("how", ["copied", "cleared"])
    def test_recordings_that_repeat(self, how):
        self.scatter(2)
        saved = how == "copied"
        for turn in range(4):
            self.x.fill(0)
            tape = ds.Tape(self.loss, in_place="save" if saved else "refuse")
            with tape:
                # Long enough to be repeated even without copies.
                for _ in range(1 if saved else 30):
                    self.x.fill(0)
                self.scatter(2)
                self.step()
                if saved:
                    self.scatter(2)  # overwrites what the loop has read
            p = self.p.to_numpy()
            want = np.cos(p * p) * 2 * p * np.array([3, 8, 13])
            np.testing.assert_allclose(self.p.grad.to_numpy(), want, rtol=1e-12)
            assert not saved or tape.stats().saved_bytes, turn

    def test_recordings_whose_set_grows(self):
        """The copies of the last recording are of fewer cells than those of the next one."""
        for turn in range(4):
            self.x.fill(0)
            with ds.Tape(self.loss, in_place="save"):
                self.scatter(2 + 5 * turn)
                self.step()
                self.scatter(2 + 5 * turn)
            p, at = self.p.to_numpy(), 2 + 5 * turn + 5 * np.arange(3)
            want = np.cos(p * p) * 2 * p * (at + 1)
            np.testing.assert_allclose(self.p.grad.to_numpy(), want, rtol=1e-12)

    def test_forward_mode(self):
        self.run()
        self.x.fill(0)
        with ds.ad.FwdMode(self.loss, self.p, seed=[1.0, 0.0, 0.0]):
            self.scatter(2)
            self.step()
        p = 0.5
        np.testing.assert_allclose(self.loss.dual[None], np.cos(p * p) * 2 * p * 3, rtol=1e-12)

    def test_checkpoints(self):
        def rollout():
            self.x.fill(0)
            self.loss[None] = 0
            with ds.Tape(self.loss):
                ds.ad.checkpoint(
                    lambda t: (self.scatter(2), self.step()), 3, [self.x, self.y, self.loss]
                )

        with pytest.raises(ds.GlobalDataAccessError, match="active cells"):
            rollout()
        rollout()
        q = self.p.to_numpy()
        factors = 2 * q * np.array([3, 8, 13])
        expected = factors * sum(t * np.cos(t * q * q) for t in (1, 2, 3))
        np.testing.assert_allclose(self.p.grad.to_numpy(), expected, rtol=1e-12)


class TestErrors:
    def test_declarations(self):
        with pytest.raises(ds.FieldError, match="along one axis of their own"):
            ds.root.dense(ds.i, 4).dynamic(ds.i, 4)
        with pytest.raises(ds.FieldError, match="inside a dynamic"):
            ds.root.dynamic(ds.i, 4).pointer(ds.j, 4)
        with pytest.raises(ds.FieldError, match="chunk_size"):
            ds.root.dynamic(ds.i, 4, chunk_size=0)

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("ds.activate(dense, [0, 0])", "active at all times"),
            ("ds.is_active(block, [0])", "2 indices are needed here, 1 given"),
            ("ds.append(block, [0, 0], 1.0)", "has no lists"),
            ("ds.deactivate(3, [0, 0])", "takes a node of a layout tree"),
            ("ds.length(block, 0.5)", "has no lists"),
        ],
    )
    def test_in_kernels(self, line, says):
        from tests.support import source

        x, block, _ = blocks_and_cells()
        dense = ds.root.dense(ds.ij, 2)
        space = {"ds": ds, "x": x, "block": block, "dense": dense}
        source.make(f"@ds.kernel\ndef run():\n    {line}\n", space)
        with pytest.raises(ds.DiffsimError, match=says) as caught:
            space["run"]()
        assert line in str(caught.value)

    def test_indices_out_of_bounds(self):
        ds.init(arch=ds.cpu, debug=True)
        x, *_ = blocks_and_cells()

        @ds.kernel
        def run(i: ds.i32):
            x[i, 0] = 1.0

        for i in (-1, 8):
            with pytest.raises(ds.AccessError, match=rf"index \({i}, 0\) is outside x"):
                run(i)

    def test_other_libraries_and_arrays(self):
        x, *_ = blocks_and_cells()

        @ds.kernel
        def run(a: ds.types.ndarray()):
            a[0, 0] = 1.0

        with pytest.raises(ds.KernelTypeError, match="sparse tree cannot be passed as an array"):
            run(x)
        with pytest.raises(ds.FieldError, match="activate nothing"):
            x.__dlpack__()


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_a_break_ends_a_loop_over_active_elements(arch):
    ds.init(arch=getattr(ds, arch))
    x = ds.field(ds.f32)
    ds.root.pointer(ds.ij, 4).dense(ds.ij, 2).place(x)

    @ds.kernel
    def fill():
        x[3, 5] = 1.0
        x[7, 2] = 2.0

    @ds.kernel
    def first(least: ds.f32) -> ds.types.vector(3, ds.i32):
        found = ds.Vector([-1, -1, 0])
        ds.loop_config(serialize=True)
        for i, j in x:
            found[2] += 1
            if x[i, j] > least:
                found = [i, j, found[2]]
                break
        return found

    fill()  # elements 2..3 x 4..5 and 6..7 x 2..3
    assert first(0.5).to_list() == [3, 5, 4]
    assert first(1.5).to_list() == [7, 2, 7]
    assert first(9.0).to_list() == [-1, -1, 8]
