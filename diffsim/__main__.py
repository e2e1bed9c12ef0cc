"""`python -m diffsim`: the same as the program `diffsim`."""

import sys

from diffsim.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
