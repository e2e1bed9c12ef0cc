"""A small network learns to balance poles on carts, all in kernels.

    python examples/cart_pole.py [--iterations N] [--steps N] [--carts N] [--arch cpu|cuda] [--out DIR]

Sixteen neurons see place, speed, angle and its rate, and push the cart. One batch of carts, each of which
starts at an angle of its own, is simulated side by side: the loops of the network run over (cart, neuron).
`cart_pole.html` in the folder plays the carts before and after the training. The equations of motion are
those of Florian, "Correct equations for the dynamics of the cart-pole system" (2007), without friction.
"""

import numpy as np

import diffsim as ds

GRAVITY = 9.81  # [m/s²]
CART, POLE = 1.0, 0.1  # masses [kg]
HALF = 0.5  # of the pole's length [m]
DT = 0.02  # time step [s]
PUSH = 15.0  # the strongest one [N]
TILT = 0.5  # the largest angle at the start [rad]
NEURONS = 16
SHOWN = 6  # carts in the film
COSTS = (0.3, 0.05, 1.0, 0.05)  # of place [1/m²], speed [s²/m²], angle [1], its rate [s²]

BOUNDS = ((-2.0, -1.2), (6.0, 6.0))  # of what is seen [m]

state_type = ds.types.vector(4, ds.f32)  # place [m], speed [m/s], angle [rad], its rate [rad/s]


@ds.func
def rates(s, force):
    """The derivative of a state by time."""
    sin, cos = ds.sin(s[2]), ds.cos(s[2])
    drive = (force + POLE * HALF * s[3] ** 2 * sin) / (CART + POLE)
    turn = (GRAVITY * sin - cos * drive) / (HALF * (4.0 / 3.0 - POLE * cos**2 / (CART + POLE)))
    return state_type([s[1], drive - POLE * HALF * turn * cos / (CART + POLE), s[3], turn])


@ds.data_oriented
class Carts:
    """Carts with a common network; time is the first index of what they do."""

    def __init__(self, carts: int, steps: int, random: np.random.Generator) -> None:
        self.carts, self.steps = carts, steps
        self.state = state_type.field(shape=(steps + 1, carts), needs_grad=True)
        self.hidden = ds.field(ds.f32, shape=(steps, carts, NEURONS), needs_grad=True)
        self.loss = ds.field(ds.f32, shape=(), needs_grad=True)
        self.w_in = state_type.field(shape=NEURONS, needs_grad=True)
        self.b_in = ds.field(ds.f32, shape=NEURONS, needs_grad=True)
        self.w_out = ds.field(ds.f32, shape=NEURONS, needs_grad=True)
        self.weights = {"w_in": self.w_in, "b_in": self.b_in, "w_out": self.w_out}
        for f, spread in ((self.w_in, 0.5), (self.w_out, NEURONS**-0.5)):
            drawn = spread * random.standard_normal(f.shape + f.element)
            f.from_numpy(drawn.astype(np.float32))
        for c in range(carts):
            self.state[0, c] = [0.0, 0.0, random.uniform(-TILT, TILT), 0.0]

    @ds.kernel
    def sense(self, t: ds.i32):
        """The output of each neuron for the state of each cart."""
        for c, n in ds.ndrange(self.carts, NEURONS):
            self.hidden[t, c, n] = ds.tanh(self.b_in[n] + self.w_in[n].dot(self.state[t, c]))

    @ds.kernel
    def move(self, t: ds.i32):
        """Push each cart for a time step, by the midpoint rule."""
        for c in range(self.carts):
            pull = 0.0
            for n in range(NEURONS):
                pull += self.w_out[n] * self.hidden[t, c, n]
            force = PUSH * ds.tanh(pull)
            s = self.state[t, c]
            s += DT * rates(s + 0.5 * DT * rates(s, force), force)
            self.state[t + 1, c] = s
            self.loss[None] += (ds.Vector(COSTS) * s * s).sum() / (self.carts * self.steps)

    def run(self) -> ds.Field:
        """Simulate all carts; return the loss: how far they are from upright, in the middle, at rest."""
        for t in range(self.steps):
            self.sense(t)
            self.move(t)
        return self.loss

    def shown(self) -> np.ndarray:
        """Simulate the carts; return the states of the first ones."""
        self.run()
        return self.state.to_numpy()[:, :SHOWN]


def outlines(states: np.ndarray) -> np.ndarray:
    """Return where the carts and the tips of their poles are, in two columns [m]."""
    column, row = np.divmod(np.arange(states.shape[1]), 3)
    carts = np.stack([4.0 * column + states[..., 0], 2.4 * row + 0 * states[..., 0]], -1)
    along = np.stack([np.sin(states[..., 2]), np.cos(states[..., 2])], -1)
    return np.concatenate([carts, carts + 2 * HALF * along], axis=1)


def main(argv: list[str] | None = None) -> None:
    """Train, and show the carts before and after."""
    parser = ds.tools.ArgumentParser(__doc__, steps=100, iterations=150, out="out/cart_pole")
    parser.add_argument("--carts", type=int, default=64, help="default %(default)s")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    carts = Carts(args.carts, args.steps, np.random.default_rng(args.seed))
    before = carts.shown()
    opt = ds.optim.Adam(carts.weights, lr=ds.optim.cosine(0.03, args.iterations), clip_norm=1.0)
    run = ds.optim.train(carts.run, opt, args.iterations, out=args.out, resume=args.resume)
    after = carts.shown()
    print(f"loss: first {run.losses[0]:.4f}, best {run.best_loss:.4f}, in {run.seconds:.1f} s")
    for name, states in (("before", before), ("after", after)):
        print(f"{name}: tilted by {np.degrees(np.abs(states[-1, :, 2]).mean()):.1f}° at the end")

    ds.save(args.out / "weights.npz", **carts.weights)
    ds.tools.plot_loss(run.losses, args.out / "loss.png")
    player = ds.tools.Player("A network balances poles")
    poles = [(c, c + before.shape[1]) for c in range(before.shape[1])]
    for name, states in (("before", before), ("after", after)):
        player.add_points(outlines(states), DT, name, lines=poles, radius=0.05, bounds=BOUNDS)
    player.add_loss(run.losses)
    player.write(args.out / "cart_pole.html")
    if args.gui:
        play(outlines(after))


def play(points: np.ndarray) -> None:
    """Show the carts in a window."""
    gui = ds.GUI("carts", res=(640, 576), background_color=0xFFFFFF)
    low, high = np.array(BOUNDS)
    shown = (points - low) / (high - low)
    half = points.shape[1] // 2
    for frame in shown:
        if not gui.running:
            break
        gui.lines(frame[:half], frame[half:], radius=2, color=0x2166AC)
        gui.circles(frame, radius=5, color=0x222222)
        gui.show()


if __name__ == "__main__":
    main()
