"""Examples of second derivatives and Jacobians: against formulas in NumPy, differences, known results."""

import importlib
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch, cpu, quick_code):
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def slope_of(beam, cg, x):
    """The gradient of the energy by a formula of its own: the first Piola-Kirchhoff stress."""
    found = beam.masses[:, None] * (x - beam.coasting.to_numpy()) / cg.DT**2
    found[:, 1] += cg.GRAVITY * beam.masses
    for a, b, c in beam.corners:
        rest = np.stack([beam.start[b] - beam.start[a], beam.start[c] - beam.start[a]], axis=1)
        f = np.stack([x[b] - x[a], x[c] - x[a]], axis=1) @ np.linalg.inv(rest)
        back = np.linalg.inv(f).T
        stress = cg.MU * (f - back) + cg.LAMBDA * np.log(np.linalg.det(f)) * back
        on = cg.DEPTH * 0.5 * np.linalg.det(rest) * stress @ np.linalg.inv(rest).T
        found[b] += on[:, 0]
        found[c] += on[:, 1]
        found[a] -= on.sum(axis=1)
    return beam.free * found


def solve(beam, cg, x):
    """The minimum by Newton's method, with a matrix of differences."""
    free = np.flatnonzero(np.repeat(beam.free, 2))
    for _ in range(30):
        slope = slope_of(beam, cg, x).ravel()[free]
        if np.abs(slope).max() < 1e-10:
            return x
        columns = []
        for k in free:
            step = np.zeros(x.size)
            step[k] = 1e-7
            ends = [slope_of(beam, cg, x + s * step.reshape(x.shape)) for s in (1, -1)]
            columns.append((ends[0] - ends[1]).ravel()[free] / 2e-7)
        d = np.zeros(x.size)
        d[free] = np.linalg.solve(np.transpose(columns), -slope)
        x = x + d.reshape(x.shape)
    raise AssertionError("no minimum")


def test_newton_cg(example, tmp_path):
    cg = example("newton_cg")
    out = ["--columns", "4", "--rows", "1", "--out", tmp_path]
    solves = cg.main(["--steps", "8", *out])
    for found in solves:
        energies, forces = [i.energy for i in found], np.array([i.force for i in found])
        assert len(found) > 2
        assert all(b <= a + cg.ROUNDING for a, b in pairwise(energies))
        assert energies[-1] < energies[0]
        assert forces[-1] < 1e-8
        # The digits double near the end, as far as there are digits.
        parts = forces[-3:] / forces[0]
        assert np.all(parts[1:] < 20 * parts[:-1] ** 2 + 1e-9)
    for name in ("newton_cg.gif", "newton_cg.html", "loss.png"):
        assert (tmp_path / name).exists()


def test_newton_cg_finds_the_minimum(example):
    cg = example("newton_cg")
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    beam = cg.Beam(4, 1)
    for _ in range(4):
        beam.step()
    before = beam.x.to_numpy()
    beam.step()
    found = beam.x.to_numpy()
    assert np.abs(found - before).max() > 1e-2
    assert np.abs(slope_of(beam, cg, found)).max() < 1e-8
    np.testing.assert_allclose(found, solve(beam, cg, before), rtol=0, atol=1e-9)


@pytest.fixture
def hand(example):
    tracking = example("hand_tracking")
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    return tracking, tracking.Hand(rings=3, around=4)


def test_hand_tracking_finds_the_pose(hand):
    tracking, hand = hand
    truth = tracking.random_pose(np.random.default_rng(5))
    hand.residuals(truth)
    hand.measured.copy_from(hand.points)
    start = np.zeros(tracking.PARAMETERS)
    # At rest the two frames of a point name the same place.
    hand.residuals(start)
    both = [hand.skin.first, hand.skin.second]
    roots = {15: (np.eye(3), np.zeros(3))}
    for f, finger in enumerate(tracking.FINGERS):
        turn = tracking.turned_sideways(finger.angle)
        for k in range(3):
            along = np.array([sum(finger.lengths[:k]), 0.0, 0.0])
            roots[3 * f + k] = turn, np.array(finger.root) + turn @ along
    for bone, where in zip(hand.skin.bones.T, both, strict=True):
        at = [roots[b][0] @ p + roots[b][1] for b, p in zip(bone, where, strict=True)]
        np.testing.assert_allclose(hand.points.to_numpy(), at, atol=1e-15)
    # The Jacobian is that of differences, and the fit finds the pose.
    hand.pose.from_numpy(truth)
    found, h = hand.jacobian(), 1e-6
    for k, column in enumerate(found.T):
        ends = [hand.residuals(truth + s * h * np.eye(len(truth))[k]) for s in (1, -1)]
        np.testing.assert_allclose(column, (ends[0] - ends[1]) / (2 * h), rtol=0, atol=1e-9)
        assert np.abs(column).max() > 1e-3
    hand.pose.from_numpy(truth)
    other = ds.ad.jacobian(hand.run, [hand.pose], [hand.residual])
    np.testing.assert_allclose(found, other[hand.pose, hand.residual], rtol=0, atol=1e-15)
    np.testing.assert_allclose(tracking.fit(hand, start, 30).pose, truth, rtol=0, atol=1e-9)


def test_hand_tracking_as_users_start_it(example, tmp_path):
    found = example("hand_tracking").main(["--iterations", "2", "--out", tmp_path, "--noise", "0"])
    assert found.errors[2] < 0.7 * found.errors[0]
    for name in ("hand_tracking.png", "hand_tracking.gif", "hand_tracking.html", "loss.png"):
        assert (tmp_path / name).exists()
