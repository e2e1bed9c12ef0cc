"""Faults on purpose: what the tests of single functions cannot meet, because it needs bad luck.

`python -m tests.soak` kills processes at random times, fills disks, takes memory away and lets many
processes and threads get in each other's way. A module here holds scenarios of one kind:

    SCENARIOS: dict[str, Callable[[float, random.Random], None]]

A scenario works for about so many seconds, takes all of its chances from the random numbers, and raises
AssertionError on a fault. It runs in a process of its own, whose temporary folder and cache are new and
are removed afterwards. Modules whose names begin with an underscore hold what scenarios share.
"""
