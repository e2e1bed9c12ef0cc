"""`gradcheck` and `gradcheck_tape` with their options: names, masks, limits, directions, tables, pictures."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

import diffsim as ds
from diffsim.ad.jacobians.report import Row, Table

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")
N = 5


@pytest.fixture(autouse=True)
def no_display():
    with mpl.rc_context({"backend": "Agg"}):
        yield
        plt.close("all")


def field(name, n=N, dtype=ds.f64, values=None):
    f = ds.field(dtype, shape=n, needs_grad=True, name=name)
    f.from_numpy((np.linspace(0.5, 2, n) if values is None else values).astype(dtype.numpy))
    return f


class Model:
    """z = sin(k x), w = y**3 by a gradient that is `factor` times the true one, total = sum of z."""

    def __init__(self, factor=1.0):
        x, y, z, w = self.x, self.y, self.z, self.w = [field(n) for n in "xyzw"]
        total = self.total = field("total", 1)

        @ds.func
        def cube(a):
            return a**3

        @ds.func_grad(cube)
        def cube_adjoint(a, g):
            ds.adjoint[a] += factor * 3 * a**2 * g

        @ds.kernel
        def wave(k: ds.f64):
            for i in x:
                z[i] = ds.sin(k * x[i])
                w[i] = cube(y[i])

        @ds.kernel
        def add():
            for i in z:
                total[0] += z[i]

        self.wave, self.add = wave, add

    def tape(self, **options):
        tape = ds.Tape(**options)
        with tape:
            self.wave(2.0)
            self.add()
        return tape


def test_a_wrong_func_grad_is_found_and_its_launch_is_named():
    m = Model(factor=0.999)
    tape = m.tape()
    with pytest.raises(ds.AutodiffError, match=r"in launch 0: wave\(2.0\): d w\[0\] / d y\[0\] is"):
        ds.ad.gradcheck_tape(tape)
    assert not ds.ad.gradcheck_tape(tape, raise_exception=False)
    assert not ds.ad.gradcheck_tape(tape, raise_exception=False, directions=1)
    with pytest.raises(ds.AutodiffError, match=r"derivative of w by y along random direction 0 is"):
        ds.ad.gradcheck(lambda: m.wave(2.0), [m.x, m.y], [m.z, m.w], directions=2)


def test_which_launches_are_checked():
    m = Model(factor=0.5)
    tape = m.tape()
    assert ds.ad.gradcheck_tape(tape, whitelist_kernels=[m.add])
    for none in ({"blacklist_kernels": ["wave", "add"]}, {"skip_to_launch_index": 9}):
        with pytest.raises(ds.AutodiffError, match="the options leave out every launch"):
            ds.ad.gradcheck_tape(tape, **none)
    for right in (
        {"whitelist_kernels": ["add"]},
        {"blacklist_kernels": ["wave"]},
        {"skip_to_launch_index": 1},
        {"reverse_launches": True, "blacklist_kernels": "wave"},
        {"input_output_masks": {"wave": [("x", "z"), (0, 1), ("y", "z")]}},
    ):
        assert ds.ad.gradcheck_tape(tape, **right), right
    for wrong in (
        {},
        {"whitelist_kernels": []},
        {"skip_to_launch_index": 1, "reverse_launches": True},
        {"input_output_masks": {"wave": [("y", "w")]}},
        {"input_output_masks": {"wave": [(1, "w")], "add": None}},
        {"max_inputs_per_var": 1, "max_outputs_per_var": 1},
    ):
        assert not ds.ad.gradcheck_tape(tape, raise_exception=False, **wrong), wrong
    with pytest.raises(ds.AutodiffError, match="nothing to compare"):
        ds.ad.gradcheck_tape(tape, skip_to_launch_index=2)
    with pytest.raises(
        ds.ArgumentError, match=r"no kernel that is named 'waves'[\s\S]*mean 'wave'"
    ):
        ds.ad.gradcheck_tape(tape, input_output_masks={"waves": [("x", "z")]})


def test_the_order_of_launches(capsys):
    m = Model()
    tape = m.tape()
    assert ds.ad.gradcheck_tape(tape)
    forward = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert ds.ad.gradcheck_tape(tape, reverse_launches=True)
    backward = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    wave, add = ["0:", "wave(2.0)"], ["1:", "add()"]
    assert forward == [*[wave] * 4, add]
    assert backward == [add, *[wave] * 4]
    assert ds.ad.gradcheck_tape(tape, show_summary=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_the_tape_is_usable_afterwards(in_place):
    """Gradients, replays, and `kernel.grad` of the last launch are as without a check."""
    m = Model()
    tape = m.tape(in_place=in_place)
    m.x.grad.fill(3.0)
    before = m.total[0]
    assert ds.ad.gradcheck_tape(tape)
    assert ds.ad.gradcheck(lambda: m.wave(1.0), [m.x], [m.z])
    assert m.x.grad.to_numpy().tolist() == [3.0] * N
    assert m.total[0] == before
    tape.zero()
    tape.backward(grads={m.total: 1.0})
    X = m.x.to_numpy()
    np.testing.assert_allclose(m.x.grad.to_numpy(), 2 * np.cos(2 * X), rtol=1e-14)
    m.x.from_numpy(X + 0.5)
    m.total.fill(0)
    tape.replay()
    assert ds.ad.gradcheck_tape(tape, directions=1)
    tape.zero()
    tape.backward(grads={m.total: 1.0})
    np.testing.assert_allclose(m.x.grad.to_numpy(), 2 * np.cos(2 * X + 1), rtol=1e-14)
    m.wave(3.0)
    assert ds.ad.gradcheck(lambda: m.wave(1.0), [m.x], [m.z])
    tape.zero()
    m.z.grad.fill(1.0)
    m.wave.grad(3.0)
    np.testing.assert_allclose(m.x.grad.to_numpy(), 3 * np.cos(3 * X + 1.5), rtol=1e-14)


def test_masks_of_functions():
    m = Model(factor=0.5)
    run = lambda: m.wave(2.0)  # noqa: E731
    for mask in ([("x", "z")], [(0, 0)], [(m.x, m.z), ("x", 1)]):
        assert ds.ad.gradcheck(run, [m.x, m.y], [m.z, m.w], input_output_mask=mask)
    assert not ds.ad.gradcheck(
        run, [m.x, m.y], [m.z, m.w], input_output_mask=[("y", "w")], raise_exception=False
    )
    J = ds.ad.jacobian(run, [m.x, m.y], [m.z, m.w], input_output_mask=[("x", "z")])
    assert list(J) == [(m.x, m.z)]
    np.testing.assert_allclose(J[m.x, m.z], np.diag(2 * np.cos(2 * m.x.to_numpy())), rtol=1e-14)
    fd = ds.ad.jacobian_fd(run, [m.x, m.y], [m.z, m.w], input_output_mask=[("x", "z")])
    np.testing.assert_allclose(fd[m.x, m.z], J[m.x, m.z], atol=1e-9)
    for wrong in ("xz", [("x",)], [("v", "z")], [("x", 2)], [(True, "z")]):
        with pytest.raises(ds.ArgumentError, match="mask"):
            ds.ad.gradcheck(run, [m.x, m.y], [m.z, m.w], input_output_mask=wrong)


def test_kernels_and_functions_with_parameters():
    x, scale, y = field("x"), field("scale", 1), field("y")
    chosen = ds.ndarray(ds.i32, N)

    @ds.kernel
    def pick(
        x: ds.types.ndarray(), at: ds.types.ndarray(), s: ds.types.ndarray(), y: ds.types.ndarray()
    ):
        for i in y:
            y[i] = s[0] * x[at[i]] ** 2

    at = np.array([4, 0, 0, 2, 1], np.int32)
    chosen.from_numpy(at)
    J = ds.ad.jacobian(pick, [x, chosen, scale], [y])
    X, s = x.to_numpy(), scale.to_numpy()[0]
    expected = np.zeros((N, N))
    expected[np.arange(N), at] = 2 * s * X[at]
    assert set(J) == {(x, y), (scale, y)}
    np.testing.assert_allclose(J[x, y], expected, rtol=1e-14)
    np.testing.assert_allclose(J[scale, y][:, 0], X[at] ** 2, rtol=1e-14)
    assert ds.ad.gradcheck(pick, [x, chosen, scale], [y])
    # By the names of the parameters, as in Warp, and by those of the fields.
    for mask in ([("s", "y")], [("scale", "y")], [(1, 0)]):
        some = ds.ad.jacobian(pick, [x, chosen, scale], [y], input_output_mask=mask)
        assert list(some) == [(scale, y)]
        for key in ((1, 0), ("s", "y"), ("scale", y)):
            assert some[key] is some[scale, y]
        with pytest.raises(ds.ArgumentError, match="derivatives of y by x were not computed"):
            some["x", "y"]
        for key, message in (
            ((y, x), r"no input y(?s:.*)x \(0\), scale \(1\)"),
            (("x", "z"), "no output 'z'"),
            ("x", "a list of pairs"),
        ):
            with pytest.raises(ds.ArgumentError, match=message):
                some[key]
    assert ds.ad.gradcheck(lambda a, b: pick(a, chosen, scale, b), [x], [y])
    assert ds.ad.gradcheck(lambda a: pick(a, chosen, scale, y), [x], [y])
    with pytest.raises(
        ds.ArgumentError, match="pick has 4 parameters, and is given 1 input and 1 output"
    ):
        ds.ad.gradcheck(pick, [x], [y])


def test_extrapolated_differences():
    """Exact for polynomials of degree 4, where central differences have an error of h^2."""
    x, y = field("x"), field("y")

    @ds.kernel
    def power():
        for i in x:
            y[i] = x[i] ** 4

    def off(**options):
        return ds.ad.gradcheck(
            power, [x], [y], raise_exception=False, atol=1e-10, rtol=1e-11, **options
        )

    assert off(differences="richardson")
    assert not off(eps=1e-3)


def test_differences_from_many_steps():
    """An error of 1e-9 in a given gradient is found, at steep places and close to a pole."""
    x, y = field("x", values=np.linspace(0.01, 0.9, N)), field("y")
    off = ds.field(ds.f64, shape=())

    @ds.func
    def steep(u):
        return ds.tanh(20.0 * (u - 0.5)) + 1.0 / (u * u + 0.01)

    @ds.func_grad(steep)
    def adj_steep(u, adj):
        t, r = ds.tanh(20.0 * (u - 0.5)), 1.0 / (u * u + 0.01)
        ds.adjoint[u] += adj * (20.0 * (1.0 - t * t) - 2.0 * u * r * r) * (1.0 + off[None])

    @ds.kernel
    def run():
        for i in x:
            y[i] = steep(x[i]) + ds.log(x[i])  # steps from 0.01 leave the domain of log

    def passes(how):
        return ds.ad.gradcheck(run, [x], [y], differences=how, raise_exception=False)

    assert passes("ridders")
    assert passes("complex")
    off[None] = 1e-9
    assert not passes("ridders")
    assert not passes("complex")
    with pytest.raises(ds.OptionError, match=r"(?s)complex-step' is not possible.*or 'complex'"):
        passes("complex-step")


def test_large_numbers_of_little_precision():
    """A step of 0.01 is lost beside 1e6 in f32; it grows with the number."""
    x, y = (field(n, dtype=ds.f32, values=np.linspace(1e6, 2e6, N)) for n in "xy")

    @ds.kernel
    def double():
        for i in x:
            y[i] = 2 * x[i]

    assert ds.ad.gradcheck(double, [x], [y])
    assert ds.ad.gradcheck(double, [x], [y], differences="richardson")
    assert ds.ad.gradcheck(double, [x], [y], differences="ridders")


def test_random_directions():
    """Each kind of wrong entry is found, one in a thousand too; and the same directions come from a seed."""
    x, y = field("x", 1000, values=np.ones(1000)), field("y", 1000)

    @ds.kernel
    def program(wrong: ds.i32):
        for i in x:
            y[i] = x[i] * x[(i + 1) % 1000]
            if i == wrong:
                y[i] = ds.stop_grad(x[i]) * x[(i + 1) % 1000]

    def right(wrong, **options):
        return ds.ad.gradcheck(
            lambda: program(wrong), [x], [y], directions=1, raise_exception=False, **options
        )

    assert right(-1)
    for wrong in (0, 517, 999):
        assert not right(wrong)
    assert right(517, max_outputs_per_var=500)
    assert not right(517, max_outputs_per_var=518, seed=7)


def test_nan_and_kinks():
    x, y = field("x", 2, values=np.array([0.0, 1.0 + 2e-6])), field("y", 2)

    @ds.kernel
    def root():
        for i in x:
            y[i] = ds.abs(x[i] - 1.0)

    @ds.kernel
    def nothing():
        for i in x:
            y[i] = 0.0 * ds.log(x[i] - 2.0)

    found = r"0\.19\d* by central differences \(0\.4 with half the step\)[\s\S]*kink"
    with pytest.raises(ds.AutodiffError, match=found):
        ds.ad.gradcheck(root, [x], [y])
    assert not ds.ad.gradcheck(nothing, [x], [y], raise_exception=False)
    assert not ds.ad.gradcheck(nothing, [x], [y], raise_exception=False, directions=1)


def test_what_has_no_path_is_refused():
    m = Model()
    count = ds.field(ds.i32, shape=2, name="count")
    with pytest.raises(ds.AutodiffError, match="no launch of this function leads from x to total"):
        ds.ad.gradcheck(m.add, [m.x, m.z], [m.total])
    with pytest.raises(ds.AutodiffError, match="y depends on none of the inputs"):
        ds.ad.jacobian(m.add, [m.z], [m.total, m.y])
    with pytest.raises(ds.DtypeError, match="count has whole numbers"):
        ds.ad.jacobian(m.add, [m.z], [count])
    with pytest.raises(ds.FieldError, match=r"and v has none[\s\S]*needs_grad=True"):
        ds.ad.gradcheck(m.add, [ds.field(ds.f64, shape=2, name="v")], [m.total])
    # One of several pairs without a path is no mistake: its derivatives are 0.
    J = ds.ad.jacobian(lambda: (m.wave(1.0), m.add()), [m.x, m.y], [m.w, m.total])
    assert not J[m.x, m.w].any()
    assert not J[m.y, m.total].any()


# ---- tables and pictures


def test_tables(capsys):
    rows = [
        Row("3: a_kernel_of_a_long_name(1.0)", "x", "y", 12, 1e-9, 2e-8, "y[10, 3], x[0]", True),
        Row("4: <b>", "position", "velocity", 1, float("nan"), 1.5, "v[0], x[0]", False),
    ]
    table = Table(rows)
    wide = table.text(120).splitlines()
    assert wide[1].split() == [
        *"3: a_kernel_of_a_long_name(1.0) x y 12 1.00e-09 2.00e-08 y[10, 3], x[0] ok".split()
    ]
    narrow = table.text(80).splitlines()
    assert max(map(len, narrow)) <= 80
    assert "1.00e-09" in narrow[1]
    assert narrow[2].endswith("no")
    html = table._repr_html_()
    assert html.count("<tr") == 3
    assert html.count("background") == 1
    assert "4: &lt;b&gt;" in html
    assert "launch" not in Table([Row("", "x", "y", 1, 0, 0, "", True)]).text(80)


def test_pictures_of_errors():
    m = Model(factor=0.5)
    tape = m.tape()
    assert not ds.ad.gradcheck_tape(
        tape, raise_exception=False, plot_absolute_error=True, plot_relative_error=True
    )
    figures = [plt.figure(k) for k in plt.get_fignums()]
    assert [f.get_suptitle() for f in figures] == [
        f"{what} errors of the gradient, launch {launch}"
        for what in ("relative", "absolute")
        for launch in ("0: wave(2.0)", "1: add()")
    ]
    wave = figures[2]
    images = [a.get_images()[0].get_array() for a in wave.axes if a.get_images()]
    assert len(images) == 4
    Y = m.y.to_numpy()
    np.testing.assert_allclose(np.diag(images[3]), 1.5 * Y**2, rtol=1e-6)
    assert {a.get_xlabel() for a in wave.axes} >= {"x", "y"}


def test_pictures_of_jacobians():
    m = Model()
    J = ds.ad.jacobian(lambda: m.wave(2.0), [m.x, m.y], [m.z], max_outputs_per_var=2)
    for options in ({}, {"log_scale": True}, {"scale_colors_per_submatrix": True, "title": "T"}):
        figure = ds.ad.jacobian_plot(J, m.wave, show_plot=False, **options)
        assert figure.get_suptitle() == options.get("title", "Jacobian of wave")
        images = [a.get_images()[0].get_array() for a in figure.axes if a.get_images()]
        np.testing.assert_array_equal(images[0].mask[:, 0], [False, False, True, True, True])
    one = ds.ad.jacobian_plot(J, inputs=[m.y], show_plot=False, show_colorbar=False)
    assert [a.get_xlabel() for a in one.axes] == ["y"]
    with pytest.raises(ds.ArgumentError, match=r"draws what ds.ad.jacobian returned"):
        ds.ad.jacobian_plot(np.zeros(3))


def test_large_pictures_keep_single_numbers():
    big = np.zeros((5000, 3000))
    big[4999, 1234] = -7.0
    x, y = field("x"), field("y")
    figure = ds.ad.jacobian_plot({(x, y): big}, show_plot=False, show_colorbar=False)
    image = figure.axes[0].get_images()[0].get_array()
    assert max(image.shape) <= 1200
    assert image.min() == -7.0
    assert (image != 0).sum() == 1


def test_pictures_of_a_whole_tape():
    m = Model()
    tape = m.tape()
    with tape:
        m.wave(3.0)  # a kernel is drawn once
    figures = ds.ad.jacobian_plot(tape, show_plot=False, log_scale=True)
    titles = [f.get_suptitle() for f in figures]
    assert titles == ["Jacobian of launch 0: wave(2.0)", "Jacobian of launch 1: add()"]
    images = [a.get_images()[0].get_array() for a in figures[0].axes if a.get_images()]
    np.testing.assert_allclose(np.diag(images[0]), 2 * np.cos(2 * m.x.to_numpy()), rtol=1e-13)
    ds.ad.jacobian(m.add, [m.z], [m.total], plot_jacobians=True)
    ds.ad.jacobian_fd(m.add, [m.z], [m.total], plot_jacobians=True)
    assert len(plt.get_fignums()) == 4


def test_whole_numbers_are_no_start():
    count = ds.field(ds.i32, shape=(), name="count")
    m = Model()
    tape = m.tape()
    for start in (
        lambda: ds.Tape(count),
        lambda: tape.backward(count),
        lambda: tape.backward(grads={count: 1}),
    ):
        with pytest.raises(ds.MissingGradientError, match=r"count holds whole numbers \(i32\)"):
            start()
