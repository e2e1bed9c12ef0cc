"""What a traceback shows of the package."""

import traceback
from pathlib import Path

import diffsim as ds

PACKAGE = str(Path(ds.__file__).parent)


def own_frames(error: BaseException) -> list[str]:
    """The functions of the package in an error's traceback, outermost first."""
    return [
        f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename.startswith((PACKAGE, "<diffsim"))
    ]
