"""How hard do property tests look? The same cases every time in CI, new ones on every other run."""

import os

from hypothesis import settings

# No deadline: the machine is shared, and a test never judges a wall-clock duration.
settings.register_profile("developer", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
