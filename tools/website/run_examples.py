"""Run the examples, so that the gallery has their pages.

python tools/website/run_examples.py [NAME ...]     default: all that run by themselves
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tools.website import gallery  # noqa: E402 - this checkout


def main() -> int:
    """Run one after the other; how many have failed."""
    failed = 0
    for path in gallery.EXAMPLES:
        if path.stem in sys.argv[1:] or (not sys.argv[1:] and gallery.runs(path)):
            print(f"== {path.stem}", flush=True)
            failed += subprocess.run([sys.executable, str(path)], cwd=ROOT).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
