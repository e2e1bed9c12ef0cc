"""`ds.save` and `ds.load` keep every kind of field, and refuse files that do not fit."""

import os

import numpy as np
import pytest

import diffsim as ds

Body = ds.types.struct(mass=ds.f64, number=ds.i32, place=ds.types.vector(2, ds.f32))


def make():
    x = ds.field(ds.f32, shape=(2, 3), needs_grad=True)
    v = ds.Vector.field(3, ds.f64, shape=4, layout=ds.Layout.SOA)
    count = ds.field(ds.i64, shape=())
    tensor = ds.Matrix.ndarray(2, 2, ds.f64, shape=2)
    body = Body.field(shape=3)
    return x, v, count, tensor, body


def numbers(f):
    return [f.to_numpy() for f in f.fields()]


def test_all_kinds_of_fields_come_back(cpu, tmp_path):
    path = tmp_path / "fields.npz"
    x, v, count, tensor, body = make()
    random = np.random.default_rng(0)
    parts = [f for one in (x, v, count, tensor, body) for f in one.fields()]
    for f in parts:
        f.from_numpy((100 * random.normal(size=f.shape + f.element)).astype(f.dtype.numpy))
    kept = [f.to_numpy() for f in parts]
    ds.save(path, x, v, total=count, tensor=tensor, body=body)
    with np.load(path) as file:
        names = "x v total tensor body.mass body.number body.place".split()
        assert sorted(file.files) == sorted(names)
        assert (file["v"] == kept[1]).all()
    x, v, count, tensor, body = make()
    ds.load(path, x, v, total=count, tensor=tensor, body=body)
    for f, values in zip(
        (f for one in (x, v, count, tensor, body) for f in one.fields()), kept, strict=True
    ):
        assert f.to_numpy().tobytes() == values.tobytes()
    ds.load(path, total=count)  # some of them


def test_a_file_is_replaced_when_all_is_written(cpu, tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    x = ds.field(ds.f64, shape=2)
    x.fill(1)
    ds.save(path, x)
    x.fill(2)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(ds.FileError, match="cannot be written: no space"):
        ds.save(path, x)
    assert os.listdir(tmp_path) == ["x.npz"]
    ds.load(path, x)
    assert x.to_numpy().tolist() == [1, 1]


def test_what_does_not_fit_changes_nothing(cpu, tmp_path):
    path = tmp_path / "x.npz"
    x, v, *_ = make()
    ds.save(path, x=x, v=v)
    v.fill(5)
    for name, other, words in (
        ("x", ds.field(ds.f32, shape=(3, 2)), "x has the shape (2, 3) in"),
        ("x", ds.field(ds.f64, shape=(2, 3)), "x is float32 in"),
        ("y", ds.field(ds.f32, shape=(2, 3)), "holds no y; it holds x, v"),
        ("vv", ds.field(ds.f32, shape=(2, 3)), "did you mean v? Write v=other"),
    ):
        with pytest.raises(ds.ArgumentError) as caught:
            ds.load(path, v=v, **{name: other})
        assert words in str(caught.value)
        assert "Hint: " in str(caught.value)
    assert (v.to_numpy() == 5).all()


class Unpickled:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_other_files_are_refused(cpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = ds.field(ds.f64, shape=())
    np.savez("pickle.npz", x=np.array(Unpickled(), dtype=object))
    np.save("one.npy", np.zeros(3))
    ds.save("half.npz", x)
    (tmp_path / "half.npz").write_bytes((tmp_path / "half.npz").read_bytes()[:-20])
    (tmp_path / "text.npz").write_text("x = 3")
    for name, words in (
        ("nowhere.npz", "nowhere.npz: there is no such file"),
        ("pickle.npz", "Object arrays cannot be loaded"),
        ("one.npy", "it holds a single array without a name"),
        ("half.npz", "half.npz is not a file that ds.save has written"),
        (
            "text.npz",
            "text.npz is not a file that ds.save has written: it is no archive of arrays\n",
        ),
        (".", ". is not a file that ds.save has written"),
    ):
        with pytest.raises(ds.FileError) as caught:
            ds.load(name, x)
        assert words in str(caught.value)
    assert not (tmp_path / "unpickled").exists()


def test_wrong_arguments(cpu, tmp_path):
    path = tmp_path / "x.npz"
    x = ds.field(ds.f64, shape=())
    for call, words in (
        (lambda: ds.save(path), "no field is named"),
        (lambda: ds.save(path, x, x=x), "there are two fields of the name x"),
        (lambda: ds.save(path, 3.0), "argument 2 is the number 3.0, and what is stored are fields"),
        (lambda: ds.save(path, w=np.zeros(2)), "w is a NumPy array of shape (2,)"),
        (lambda: ds.save(path, ds.field(ds.f32, shape=2)), "argument 2 is a field without a name"),
        (lambda: ds.save(3, x), "the path is a text, not 3"),
        (lambda: ds.save("/proc/no/x.npz", x), "the folder /proc/no cannot be made"),
    ):
        with pytest.raises(ds.ArgumentError) as caught:
            call()
        assert words in str(caught.value)
    assert not path.exists()
