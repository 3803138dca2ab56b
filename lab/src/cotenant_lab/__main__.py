"""`python -m cotenant_lab` is the same as `cotenant-lab`."""

import sys

from cotenant_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
