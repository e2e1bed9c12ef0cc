"""ADBench's Gaussian mixture model, without the prior: one point a lane, sums over 25 Gaussians."""

SIZES = (100, 1000, 8000)
K, D = 25, 10
TAICHI = dict(ad_stack_size=64)


def given(n, random):
    return dict(
        alpha=random.standard_normal(K),
        mean=random.standard_normal((K, D)),
        q=0.3 * random.standard_normal((K, D)),
        low=0.3 * random.standard_normal((K, D, D)),
        x=random.standard_normal((n, D)),
    )


def work(n):
    return n * K, 2, D * D + 3 * D + 20


def program(ti, n, shapes):
    alpha = ti.field(float, shape=K, needs_grad=True)
    mean = ti.field(float, shape=(K, D), needs_grad=True)
    q = ti.field(float, shape=(K, D), needs_grad=True)
    low = ti.field(float, shape=(K, D, D), needs_grad=True)
    x = ti.field(float, shape=(n, D))
    terms = ti.field(float, shape=(n, K), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def weigh():
        for i, k in terms:
            sum_q, square = 0.0, 0.0
            for a in range(D):
                sum_q += q[k, a]
                row = ti.exp(q[k, a]) * (x[i, a] - mean[k, a])
                for b in range(a):
                    row += low[k, a, b] * (x[i, b] - mean[k, b])
                square += row * row
            terms[i, k] = alpha[k] + sum_q - 0.5 * square

    @ti.kernel
    def add_up():
        for i in range(n):
            most = terms[i, 0]
            for k in range(1, K):
                most = ti.max(most, terms[i, k])
            total = 0.0
            for k in range(K):
                total += ti.exp(terms[i, k] - most)
            loss[None] += (most + ti.log(total)) / n

    def run():
        weigh()
        add_up()

    return run, loss, dict(alpha=alpha, mean=mean, q=q, low=low, x=x)
