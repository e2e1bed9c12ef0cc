"""Messages of the checks that the frontend and the backends put into every kernel.

Two parts share each of them: the one that emits the `Check`, and the runtime, which finds the advice for a
failed check by its message.
"""

DIVIDED_BY_0 = "an integer is divided by 0"
NEGATIVE_POWER = "an integer to the power {} is no integer"
DOES_NOT_FIT = "does not fit"  # how the message of a check of an assignment ends
NO_LOG = "no memory to note the updates of this loop, which are made in order (deterministic=True)"
