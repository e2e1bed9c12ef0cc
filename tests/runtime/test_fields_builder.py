"""Layout trees of their own: `ds.FieldsBuilder`, and fields that are given up with their tree."""

import pytest

import diffsim as ds


def test_a_tree_of_its_own(cpu):
    """d(sum x^2)/dx = 2 x for fields of a builder; after destroy each use names the field and the line."""
    builder = ds.FieldsBuilder()
    x, loss = ds.field(ds.f32), ds.field(ds.f32)
    node = builder.dense(ds.i, 3)
    node.place(x)
    builder.place(loss)
    builder.lazy_grad()
    tree = builder.finalize()
    other = ds.field(ds.f32, shape=3, needs_grad=True)

    @ds.kernel
    def square():
        for i in x:
            loss[None] += x[i] ** 2

    x.fill(2.0)
    with ds.Tape(loss) as tape:
        square()
    assert x.grad.to_numpy().tolist() == [4, 4, 4]
    for late in (lambda: node.place(ds.field(ds.f32)), lambda: builder.dense(ds.i, 2)):
        with pytest.raises(ds.FieldError, match="this tree of fields is complete"):
            late()
    with pytest.raises(ds.FieldError, match="this tree of fields is complete"):
        builder.finalize()

    gradient = x.grad
    tree.destroy()
    uses = [
        lambda: x[0],
        lambda: x.fill(1.0),
        lambda: x.to_numpy(),
        lambda: x.shape,
        lambda: gradient[0],
        lambda: square(),
        lambda: square.grad(),
        lambda: ds.root.dense(ds.i, 3).place(x),
    ]
    for use in uses:
        with pytest.raises(ds.DiffsimError, match=r"given up|already has its place") as caught:
            use()
        assert "test_fields_builder.py" in str(caught.value)
    with pytest.raises(ds.DiffsimError):
        tape.backward()
    with pytest.raises(ds.FieldError, match="destroyed already"):
        tree.destroy()
    ds.ad.clear_all_gradients()
    other.grad.fill(1.0)
    assert other.grad[0] == 1.0


def test_kernels_see_the_next_tree(cpu):
    """A program that builds its fields anew in a loop, with other sizes."""
    sums = []
    for n in (2, 5):
        builder = ds.FieldsBuilder()
        x = ds.field(ds.i32)
        builder.dense(ds.i, n).place(x, offset=-1)
        tree = builder.finalize()

        @ds.kernel
        def fill(x: ds.template()):
            for i in x:
                x[i] = i

        fill(x)
        sums.append(int(x.to_numpy().sum()))
        tree.destroy()
    assert sums == [-1, 5]


def test_all_trees_are_deactivated():
    """Those of builders too."""
    builder, x, y = ds.FieldsBuilder(), ds.field(ds.f32), ds.field(ds.f32)
    builder.pointer(ds.i, 4).dense(ds.i, 8).place(x)
    builder.finalize()
    ds.root.pointer(ds.i, 4).dense(ds.i, 8).place(y)
    x[20], y[3] = 1.0, 2.0
    ds.deactivate_all_snodes()
    assert (x[20], y[3]) == (0.0, 0.0)
    assert not x.parent(2).cells.mask.to_numpy().any()
