"""ADBench's LSTM, whose gates are elementwise: two layers, 16 times, a batch of characters."""

SIZES = (128, 4096, 32768)
TIMES, LAYERS = 16, 2


def given(n, random):
    return dict(
        x=random.standard_normal((TIMES, n)),
        weights=random.standard_normal((LAYERS, 4, n)),
        biases=random.standard_normal((LAYERS, 4, n)),
    )


def work(n):
    return TIMES * LAYERS * n, 60, 80


def program(ti, n, shapes):
    x = ti.field(float, shape=(TIMES, n))
    weights = ti.field(float, shape=(LAYERS, 4, n), needs_grad=True)
    biases = ti.field(float, shape=(LAYERS, 4, n), needs_grad=True)
    hidden = ti.field(float, shape=(TIMES + 1, LAYERS + 1, n), needs_grad=True)
    cell = ti.field(float, shape=(TIMES + 1, LAYERS, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def sigmoid(a):
        return 1.0 / (1.0 + ti.exp(-a))

    @ti.kernel
    def enter(t: ti.i32):
        for i in range(n):
            hidden[t + 1, 0, i] = x[t, i]

    @ti.kernel
    def step(t: ti.i32, l: ti.i32):
        for i in range(n):
            above, before = hidden[t + 1, l, i], hidden[t, l + 1, i]
            forget = sigmoid(above * weights[l, 0, i] + biases[l, 0, i])
            ingate = sigmoid(before * weights[l, 1, i] + biases[l, 1, i])
            outgate = sigmoid(above * weights[l, 2, i] + biases[l, 2, i])
            change = ti.tanh(before * weights[l, 3, i] + biases[l, 3, i])
            c = cell[t, l, i] * forget + ingate * change
            cell[t + 1, l, i] = c
            hidden[t + 1, l + 1, i] = outgate * ti.tanh(c)

    @ti.kernel
    def compare(t: ti.i32):
        for i in range(n):
            loss[None] += (hidden[t + 1, LAYERS, i] - 0.5 * x[t, i]) ** 2 / n

    def run():
        for t in range(TIMES):
            enter(t)
            for l in range(LAYERS):
                step(t, l)
            compare(t)

    return run, loss, dict(x=x, weights=weights, biases=biases)
