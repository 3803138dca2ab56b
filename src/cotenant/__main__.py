"""`python -m cotenant` is the same as `cotenant`."""

from __future__ import annotations

import sys

from cotenant.cli import main

sys.exit(main())
