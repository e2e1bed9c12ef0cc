"""What the refusals of random programs advise, done: the program then has its gradient.

A refusal names the options that lift its rule: `in_place="save"` for the tape, `needs_grad=True` for a field
on the way, the switch for both, and in strict sessions, half of them, `simplicity="relaxed"` for the kernel.
Each is applied to the program as a user would. What it was advised for may not be refused again; other
refusals that show then are treated alike, and in the end the gradient is right.
"""

import re
from random import Random

from diffsim.errors import AutodiffError
from tests.fuzz import programs

RELAXED, SAVE, NEEDS_GRAD = 'simplicity="relaxed"', 'in_place="save"', "needs_grad=True"
NARROW = (RELAXED, SAVE, NEEDS_GRAD)
SWITCH = 'ds.init(rules="lifted")'


def make(seed, maker=programs):
    """The program of this number, without options, and the fields that have no gradient."""
    text = maker.make(seed)
    # A copy of a field without gradient sets an input, which the oracle knows of constant fields alone.
    copies = "copy_from" in text or "ds.copy" in text or "ds.clone" in text
    names = [] if copies else [k for k in programs.start(seed)[0] if k in "yz"]
    return text, [k for k in names if Random(seed).random() < 0.3]


def verdict(text, seed, lent):
    """ "right", "refused" (with no advice of this kind) or "invalid"; or what is wrong with the advice."""
    options = {"kernel_simplicity": "strict" if seed // 2 % 2 else "relaxed"}
    error = programs.run(text, seed, None, lent=lent, **options)
    if not isinstance(error, AutodiffError):
        return "right"
    found = _narrow(text, seed, lent, error, options)
    # A field without gradient alone is advised to have one, no more: the switch is not in that text.
    if error.is_lifted and SWITCH in str(error) and found in ("right", "refused"):
        options["rules"] = "lifted"
        lifted = programs.verdict(text, seed, None, lent=lent, **options)
        if lifted == "refused":
            again = programs.run(text, seed, None, lent=lent, **options)
            return f"{SWITCH} does not lift all:\n{error}\nthen:\n{again}"
        return lifted
    return found


def _narrow(text, seed, lent, error, options):
    """The verdict after all that is advised for this error was done; what comes then is treated alike."""
    how = None
    while isinstance(error, AutodiffError):
        advised = {
            option: [e for e in error.parts if option in (e.hint or "")] for option in NARROW
        }
        if not any(advised.values()):
            return "refused"
        if advised[RELAXED]:
            text = text.replace("@ds.kernel\n", f"@ds.kernel({RELAXED})\n")
        hints = " ".join(e.hint for e in advised[NEEDS_GRAD])
        lent = [k for k in lent if not re.search(rf"\b{k} with needs_grad=True", hints)]
        how = "save" if advised[SAVE] else how
        again = programs.run(text, seed, how, lent=lent, **options)
        if isinstance(again, AutodiffError):
            kept = _places(again) & {p for parts in advised.values() for p in map(_place, parts)}
            if kept:
                return f"advice was followed in vain:\n{error}\nthen:\n{again}"
        error = again
    return programs.verdict(text, seed, how, lent=lent, **options)


def _place(part):
    return type(part), part.message.partition("\n")[0], part.span and part.span.line


def _places(error):
    return {_place(part) for part in error.parts} if isinstance(error, AutodiffError) else set()
