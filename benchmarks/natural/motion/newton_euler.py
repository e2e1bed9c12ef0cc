"""Inverse dynamics of arms of 7 joints: the recursive Newton-Euler algorithm, outward and inward."""

SIZES = (128, 4096, 32768)
JOINTS = 7


def given(n, random):
    return dict(
        q=random.standard_normal((n, JOINTS)),
        qd=random.standard_normal((n, JOINTS)),
        qdd=random.standard_normal((n, JOINTS)),
        length=random.uniform(0.2, 0.5, JOINTS),
        mass=random.uniform(1, 2, JOINTS),
    )


def work(n):
    return n * JOINTS, 40, 250


def program(ti, n, shapes):
    q = ti.field(float, shape=(n, JOINTS), needs_grad=True)
    qd = ti.field(float, shape=(n, JOINTS), needs_grad=True)
    qdd = ti.field(float, shape=(n, JOINTS), needs_grad=True)
    length = ti.field(float, shape=JOINTS, needs_grad=True)
    mass = ti.field(float, shape=JOINTS, needs_grad=True)
    F = ti.Vector.field(3, float, shape=(n, JOINTS), needs_grad=True)
    T = ti.Vector.field(3, float, shape=(n, JOINTS), needs_grad=True)
    tau = ti.field(float, shape=(n, JOINTS), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def rotation(angle, k):
        c, s = ti.cos(angle), ti.sin(angle)
        R = ti.Matrix([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        if k % 2 == 1:
            R = ti.Matrix([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])
        return R

    @ti.func
    def axis(k):
        a = ti.Vector([0.0, 0.0, 1.0])
        if k % 2 == 1:
            a = ti.Vector([0.0, 1.0, 0.0])
        return a

    @ti.kernel
    def outward():
        for i in range(n):
            w = ti.Vector([0.0, 0.0, 0.0])
            wd = ti.Vector([0.0, 0.0, 0.0])
            a = ti.Vector([0.0, 0.0, 9.81])
            for k in range(JOINTS):
                R = rotation(q[i, k], k).transpose()
                z = axis(k)
                w_new = R @ w + z * qd[i, k]
                wd = R @ wd + z * qdd[i, k] + (R @ w).cross(z * qd[i, k])
                w = w_new
                r = ti.Vector([length[k], 0.0, 0.0])
                a = R @ a + wd.cross(r) + w.cross(w.cross(r))
                ac = a - 0.5 * (wd.cross(r) + w.cross(w.cross(r)))
                inertia = mass[k] * length[k] ** 2 / 12.0
                F[i, k] = mass[k] * ac
                T[i, k] = inertia * wd + w.cross(inertia * w * ti.Vector([0.1, 1.0, 1.0]))

    @ti.kernel
    def inward():
        for i in range(n):
            f = ti.Vector([0.0, 0.0, 0.0])
            m = ti.Vector([0.0, 0.0, 0.0])
            for step in range(JOINTS):
                k = JOINTS - 1 - step
                r = ti.Vector([length[k], 0.0, 0.0])
                m = m + T[i, k] + (0.5 * r).cross(F[i, k]) + r.cross(f)
                f = f + F[i, k]
                tau[i, k] = m.dot(axis(k))
                R = rotation(q[i, k], k)
                f = R @ f
                m = R @ m

    @ti.kernel
    def effort():
        for i, k in tau:
            loss[None] += tau[i, k] ** 2 / n

    def run():
        outward()
        inward()
        effort()

    return run, loss, dict(q=q, qd=qd, qdd=qdd, length=length, mass=mass)
