"""The web console of a running demo."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

from cotenant.node.directories import Directories

_ADDRESS = "web console: "


@contextlib.contextmanager
def live_page(directories: Directories, report_step: Callable[[str], None]) -> Iterator[None]:
    """Serve the page of the demo's node inside the block, and report its address; a demo without it runs all the same.

    Its process costs nothing while no page is open, so that it does not disturb what the demo measures.
    """
    where = ["--runtime-dir", str(directories.runtime), "--state-dir", str(directories.state)]
    process = subprocess.Popen(
        [sys.executable, "-m", "cotenant", "web", "--listen", "127.0.0.1:0", *where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline().strip().removeprefix("cotenant: ")
    if line.startswith(_ADDRESS):
        report_step(f"demo: watch the run live at {line.removeprefix(_ADDRESS)}")
    else:
        report_step(f"demo: there is no live page: {line}")
    try:
        yield
    finally:
        process.terminate()
        process.communicate()
