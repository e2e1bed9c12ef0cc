"""Robots that learn, and billiards: losses fall, gradients agree with differences and closed forms."""

import json
from dataclasses import replace

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, check_along

PAGES = ("loss.png", "log.csv")


def written(folder, *names):
    for name in (*PAGES, *names):
        assert (folder / name).stat().st_size > 300, name


def random_weights(walker, size=0.3):
    random = np.random.default_rng(1)
    for f in (walker.weights, walker.bias):
        f.from_numpy(size * random.standard_normal(f.to_numpy().shape))


def shrunk(monkeypatch, module, cells):
    """The example with a coarse grid."""
    for name, value in {
        "GRID": cells,
        "INV": float(cells),
        "DX": 1 / cells,
        "WALL": cells // 16,
    }.items():
        monkeypatch.setattr(module, name, value)


def test_mpm_walker(example, monkeypatch, tmp_path):
    walker = example("mpm_walker")
    shrunk(monkeypatch, walker, 32)
    losses = walker.main(["--steps", 150, "--iterations", 4, "--out", tmp_path])
    assert losses[-1] < losses[0] - 1e-3
    written(tmp_path, "before.gif", "after.gif", "mpm_walker.html")


def test_mpm_walker_gradient(example, monkeypatch):
    ds.init(default_fp=ds.f64, rules="lifted")
    walker = example("mpm_walker")
    shrunk(monkeypatch, walker, 32)
    robot = walker.Walker(40, [(0.3, 0.15, 0.2, 0.1, -1), (0.3, 0.05, 0.1, 0.1, 0)])
    random_weights(robot)
    check_along(robot.walk, robot.loss, [robot.weights, robot.bias], rel=1e-5, h=1e-4)


def test_mpm_walker_3d(example, monkeypatch, tmp_path):
    walker = example("mpm_walker_3d")
    shrunk(monkeypatch, walker, 16)
    options = ["--steps", 40, "--iterations", 3, "--memory", 2, "--out", tmp_path]
    losses = walker.main(options)
    assert losses[-1] < losses[0]
    written(tmp_path, "before.gif", "after.gif", "mpm_walker_3d.html")
    ds.init(default_fp=ds.f64)
    robot = walker.Walker(20, 800_000)
    random_weights(robot)
    check_along(robot.walk, robot.loss, [robot.weights, robot.bias])
    with ds.Tape(robot.loss):
        robot.walk()
    assert robot.stats.peak_bytes <= 800_000


def test_liquid_walker(example, monkeypatch, tmp_path):
    walker = example("liquid_walker")
    shrunk(monkeypatch, walker, 16)
    options = ["--steps", 30, "--iterations", 3, "--memory", 2, "--block", 0.1, "--out", tmp_path]
    losses = walker.main(options)
    assert losses[-1] < losses[0]
    written(tmp_path, "before.gif", "after.gif", "liquid_walker.html")
    ds.init(default_fp=ds.f64)
    robot = walker.Walker(20, 10**6, 0.1)
    assert 0 < robot.solid < robot.n
    random_weights(robot)
    check_along(robot.walk, robot.loss, [robot.weights, robot.bias])


def test_rigid_body(example, tmp_path):
    body = example("rigid_body")
    losses = body.main(["--steps", 300, "--iterations", 5, "--out", tmp_path])
    assert losses[-1] < losses[0] - 1e-3
    written(tmp_path, "before.gif", "after.gif", "rigid_body.html")
    ds.init(default_fp=ds.f64)
    robot = body.Robot(150)
    body.set_weights(robot, 1)
    check_along(robot.walk, robot.loss, robot.weights, rel=1e-5, h=1e-8)
    pose = robot.pose.to_numpy()
    lowest = pose[-1, 1:4, 1] - robot.half.to_numpy()[1:4].max(1)
    assert (lowest < body.GROUND).any()  # feet have met the ground,
    height = robot.film()[0][:, : 4 * robot.n, 1].min()
    assert height > body.GROUND - 1e-3  # and no corner is in it


def test_a_body_slides_and_rests_on_the_ground(example):
    """Friction brakes it by mu g, as long as it slides; the ground bears it all the time."""
    body = example("rigid_body")
    ds.init(default_fp=ds.f64)
    block = body.Robot(60, [((0.5, body.GROUND + 0.02), (0.04, 0.02))] * 2, body.SPRINGS[:1])
    block.stiffness.fill(0.0)
    block.begin()
    block.motion[0, 0] = [0.3, 0.0, 0.0]
    for t in range(60):
        block.move(t)
    slides, rests = block.motion.to_numpy()[:, 0, 0], block.pose.to_numpy()[:, 1, 1]
    np.testing.assert_allclose(rests, body.GROUND + 0.02, atol=1e-5)
    speed = 0.3
    for t in range(25):
        assert slides[t] == pytest.approx(speed, abs=0.01)
        speed = body.DRAG * speed - body.FRICTION * body.DT * body.GRAVITY
    assert abs(slides[40:]).max() < 0.01


def test_billiards(example, tmp_path):
    billiards = example("billiards")
    losses = billiards.main(["--iterations", 6, "--out", tmp_path])
    assert losses[-1] < 0.65 * losses[0]
    written(tmp_path, "billiards.png", "billiards.html")


def test_shots_have_the_gradients_of_differences(example):
    billiards = example("billiards")
    ds.init(default_fp=ds.f64)
    game = billiards.Game(billiards.load_table(billiards.TABLES / "rack.json"), 300)
    game.shot[None] = [1.0, 0.02]
    check(game.play, game.loss, game.place, game.shot, rel=1e-5, h=1e-7)


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_a_ball_and_a_cushion_have_the_closed_form(example, share):
    billiards = example("billiards")
    ds.init(default_fp=ds.f64)
    rack = billiards.load_table(billiards.TABLES / "rack.json")
    table = replace(rack, balls=[[0.5, 0.5]], shot=[1.0, 0.0], cushion=share, target=0, spot=[0, 0])
    end, duration = 1.0 - table.radius, 200 * billiards.DT
    for exact, slope in ((True, -share), (False, 1.0)):
        game = billiards.Game(table, 200, exact)
        for place in (0.2, 0.5, 0.6013):
            game.place[None] = [place, 0.0]
            tape = ds.Tape(retain_grad=[game.x])
            with tape:
                game.play()
            tape.backward(grads={game.loss: 1.0})
            x = game.x[200, 0][0]
            free = place + duration
            found = game.place.grad[None][0] / (2 * x)
            tape.zero()
            if free < end:
                assert found == pytest.approx(1.0)
                continue
            assert found == pytest.approx(slope)
            if exact:
                assert x == pytest.approx((1 + share) * end - share * free, abs=1e-12)


def test_two_balls_have_the_closed_form(example):
    """An oblique impact: normal and time from the quadratic equation, in NumPy and complex steps."""
    billiards = example("billiards")
    ds.init(default_fp=ds.f64)
    rack = billiards.load_table(billiards.TABLES / "rack.json")
    table = replace(
        rack, balls=[[0.2, 0.5], [0.5, 0.52]], shot=[0.9, 0.0], target=1, spot=[0.0, 0.0]
    )
    steps = 200

    def end(start):
        apart, u = start - np.array([0.5, 0.52]), np.array([0.9, 0.0])
        a, b, c = u @ u, apart @ u, apart @ apart - 4 * table.radius**2
        when = (-b - np.sqrt(b * b - a * c)) / a
        normal = (apart + when * u) / (2 * table.radius)
        speed = 0.5 * (1 + table.restitution) * (u @ normal) * normal
        place = np.array([0.5, 0.52]) + (steps * billiards.DT - when) * speed
        return place @ place

    game = billiards.Game(table, steps)
    with ds.Tape(game.loss):
        game.play()
    start = np.array([0.2, 0.5], complex)
    expected = [end(start + 1e-30j * way).imag / 1e-30 for way in np.eye(2)]
    assert game.loss[None] == pytest.approx(end(start).real, rel=1e-12)
    np.testing.assert_allclose(game.place.grad.to_numpy(), expected, rtol=1e-9)


WRONG = {
    '{"size": [1, 1]}': '"radius" has to be there',
    "[1]": '"the file" has to be one object',
    "{": "line 1 column",
    '{"sizes": [1, 1]}': "meant may be: size",
}
CHANGES = [
    ("radius", 2, '"radius" has to be a number from 0 to 1'),
    ("radius", 0.6, '"radius" has to be so small that a ball fits in'),
    ("shot", [1], '"shot" has to be two numbers [x, y]'),
    ("spot", [1, float("nan")], '"spot" has to be two numbers [x, y]'),
    ("target", 11, '"target" has to be the number of a ball, 0 to 10'),
    ("target", True, '"target" has to be the number of a ball, 0 to 10'),
    ("size", [1, 0.5], '"balls[0]" has to be on the table'),
    ("balls", [], '"balls" has to be a list of [x, y]'),
    ("balls", [[0.5, 0.5], [0.51, 0.5]], '"balls[1]" has to be beside balls[0]'),
]


def test_wrong_tables_say_what_is_wrong(example, tmp_path, capsys):
    tables = example("billiards_table")
    good = json.loads((tables.TABLES / "rack.json").read_text())
    changed = {json.dumps(good | {"target": 0, k: v}): text for k, v, text in CHANGES}
    for given, text in (WRONG | changed).items():
        path = tmp_path / "table.json"
        path.write_text(given)
        with pytest.raises(tables.TableError) as caught:
            tables.load_table(path)
        assert str(caught.value).startswith(str(path)), given
        assert text in str(caught.value)
    billiards = example("billiards")
    with pytest.raises(SystemExit):
        billiards.main([tmp_path / "none.json", "--out", tmp_path])
    assert "a table to start from is" in capsys.readouterr().err
