"""The best division of a rollout between states and tapes that are held in limited memory.

A stretch of steps, whose first state is at hand, is reversed in one of two ways:

    leaf    All its steps are run on tapes. One tape is at work, the others are held.
    split   Its first state is held while `i` steps are run without a tape. The rest is reversed with the
            memory that is left; then the first `i` steps are, from the state, whose memory is free by then.

So a rollout is a binary tree of splits (A. Griewank, A. Walther, "Algorithm 799: revolve", 2000), whose
leaves hold tapes (J. R. Maddison, "Step-based checkpointing with high-level algorithmic differentiation",
arXiv 2305.09568). `lengths[c]` says how long a leaf may be beside c held states. A leaf reached by r left and
c right branches runs each of its steps r times more than once.

**Closed form.** A split of a leaf (r, c) adds `lengths[c + 1]` steps that are run again r + 1 times, and
`lengths[c] - lengths[c + 1]` runs, as that many steps move from the leaf to its left part. There are
binom(r + c, c) leaves (r, c). It is best to split all leaves with few repetitions r first, and of one r those
with few held states c: steps per added run decrease in this order. So the cost of n steps is a sum over c,
and no table over the steps is needed. For tapes as large as states that is the optimum; for other sizes it
is a few per cent above it where memory holds a few states only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, inf

MOST_STATES = 2048
"""Most states that are held at once. So many reverse 2 million steps with one repetition, even without
tapes; and planning takes time in proportion to them."""


def leaf_lengths(free: int, state: int, tape: int) -> list[int]:
    """Return for each number of held states how many steps fit on tapes beside them.

    Args:
        free: bytes for states and tapes, besides the tape at work.
        state: bytes of a state.
        tape: bytes of the tape of a step.
    """
    most = min(free // state, MOST_STATES)
    return [1 + (free - c * state) // tape for c in range(most + 1)]


def repeated(n: int, lengths: Sequence[int]) -> float:
    """Return how many runs of steps the reversal of n steps takes, beside one of each; inf: impossible."""
    if n <= lengths[0]:
        return 0
    if len(lengths) == 1:
        return inf
    r = _repetitions(n, lengths)
    cost, left = _repeated_below(r, lengths), n - _reach(r, lengths)
    ways = 1
    for c in range(len(lengths) - 1):
        size = lengths[c + 1]
        groups = min(ways, -(-left // size))
        used = min(left, groups * size)
        cost += used * (r + 1) + groups * (lengths[c] - size)
        left -= used
        if not left:
            break
        ways = ways * (r + c + 1) // (c + 1)
    return cost


def planned(n: int, lengths: Sequence[int]) -> float:
    """Return how many runs of steps the reversal by `best_split` takes, beside one of each, at most."""
    return 0 if n <= lengths[0] else repeated(n, _best_states(n, lengths))


def best_split(n: int, lengths: Sequence[int]) -> int:
    """Return how many steps to run before the rest of n steps is reversed; 0: all of them go on tapes."""
    if n <= lengths[0]:
        return 0
    if (
        len(lengths) == 1
    ):  # no memory for a state: up to the last leaf, and again from an earlier state
        return n - lengths[0]
    lengths = _best_states(n, lengths)
    r = _repetitions(n, lengths)
    # The right part takes what it can of the leaves that are split last: it is cheaper by one repetition.
    right, left, ways = _reach(r, lengths[1:]), n - _reach(r, lengths), 1
    for c in range(len(lengths) - 1):
        size = lengths[c + 1]
        used = min(left, ways * size)
        # Of the binom(r + c, c) leaves binom(r + c - 1, c - 1) are in the right part.
        if c:
            right += min(used, comb(r + c - 1, c - 1) * size)
        left -= used
        if not left:
            break
        ways = ways * (r + c + 1) // (c + 1)
    return max(1, n - right)


def _best_states(n: int, lengths: Sequence[int]) -> Sequence[int]:
    """Return the lengths up to the most states that it pays to hold."""
    # The last state may take the memory of many tapes, and spare less than they do.
    if len(lengths) < 3 or lengths[-2] - lengths[-1] <= lengths[-1]:
        return lengths
    numbers = range(2, len(lengths) + 1)
    # Costs differ little from one number of states to the next: of many, a few are compared.
    tried = {*numbers[:: 1 + len(numbers) // (32 if len(numbers) < 500 else 6)], numbers[-1]}
    return lengths[: min(tried, key=lambda k: repeated(n, lengths[:k]))]


def _repetitions(n: int, lengths: Sequence[int]) -> int:
    """Return the most repetitions r such that n steps need all splits of leaves with fewer than r."""
    high = 1
    while _reach(high, lengths) < n:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if _reach(middle, lengths) < n:
            low = middle
        else:
            high = middle
    return low


def _reach(r: int, lengths: Sequence[int]) -> int:
    """Return how many steps there are after all splits of leaves with fewer than r repetitions."""
    # The leaves then are those with r repetitions that end in a left branch, and those without memory for
    # another state.
    if r == 0:
        return lengths[0]
    most = len(lengths) - 1
    ways, steps = 1, 0
    for c in range(most):
        steps += ways * lengths[c]
        ways = ways * (r + c) // (c + 1)
    return steps + ways * lengths[most]


def _repeated_below(r: int, lengths: Sequence[int]) -> int:
    """Return how many repetitions there are after all splits of leaves with fewer than r."""
    most = len(lengths) - 1
    ways, steps = 1, 0
    for c in range(most):
        steps += ways * lengths[c]
        ways = ways * (r + c) // (c + 1)
    # sum of q binom(q + s - 1, s - 1) for q < r, with s = most
    return r * steps + lengths[most] * most * comb(r + most - 1, most + 1) if r else 0
