"""Matrix factorization: ratings of pairs, factors in rows that indices tell."""

SIZES = (1000, 50000, 400000)
D = 16


def given(n, random):
    u, m = max(n // 20, 2), max(n // 50, 2)
    return dict(
        user=random.integers(0, u, n).astype("i4"),
        item=random.integers(0, m, n).astype("i4"),
        rating=random.uniform(1, 5, n),
        p=random.standard_normal((u, D)) / 4,
        q=random.standard_normal((m, D)) / 4,
        bias=random.standard_normal(m),
    )


def work(n):
    return n, 12 + 8 * D, 2 * D


def program(ti, n, shapes):
    user = ti.field(int, shape=n)
    item = ti.field(int, shape=n)
    rating = ti.field(float, shape=n)
    p = ti.field(float, shape=shapes["p"], needs_grad=True)
    q = ti.field(float, shape=shapes["q"], needs_grad=True)
    bias = ti.field(float, shape=shapes["bias"], needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def predict():
        for e in rating:
            s = bias[item[e]]
            for d in range(D):
                s += p[user[e], d] * q[item[e], d]
            loss[None] += (s - rating[e]) ** 2 / n

    @ti.kernel
    def decay():
        for i, d in p:
            loss[None] += 1e-4 * p[i, d] ** 2
        for i, d in q:
            loss[None] += 1e-4 * q[i, d] ** 2

    def run():
        predict()
        decay()

    return run, loss, dict(user=user, item=item, rating=rating, p=p, q=q, bias=bias)


TAICHI = dict(ad_stack_size=32)
