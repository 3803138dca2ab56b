"""docs/errors.md, made from the table of errors: `python -m tests.policy.errors_page > docs/errors.md`."""

from __future__ import annotations

import sys

from cotenant.domain.fault import Act, ErrorClass, Source
from cotenant.policy.protect.errors import CLASSES

HEAD = """# Errors, and what is done about them

Made from [policy/protect/errors.py](../src/cotenant/policy/protect/errors.py); a test holds them equal.
`python -m tests.policy.errors_page` prints this page. Everything here has only ever run on the software GPU
([its faults](softgpu-faults.md)); what real hardware does is taken from `cuda.h` 13.0 and NVIDIA's
[Xid catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).

*whose* is the smallest thing that must be begun anew: the tenant, the MPS server, the device, or the node itself.
*restart* is what `cotenant run --restart on-failure` goes by ([how](protection.md#restart)): "no" means that beginning
again would end in the same way, or that somebody wanted the end.

| action | |
|---|---|
"""

ACTS = {
    Act.NONE: "nothing is done: it is over already, the call alone failed, or it is only to be told",
    Act.END: "the tenant is ended step by step ([how](protection.md#how-a-program-ends)), after `protect.fault_grace` "
    "to end by itself",
    Act.KILL: "the tenant is killed at once",
    Act.RESTART_SERVER: "the MPS server is started anew; offline newcomers wait for the online tenants that were there",
    Act.DRAIN: "nobody joins the device and its offline tenants are ended, until everybody has left it",
    Act.DISABLE: "nobody joins the device until it answers again",
}

TITLES = {
    Source.SIGNAL: ("Signals", "The program ended by a signal: its process is gone, and what it held with it."),
    Source.CUDA: (
        "CUDA codes",
        "The first result of a driver call after which a process cannot go on, as the hook saw it.",
    ),
    Source.XID: ("Xids", "What the driver writes into the kernel log, as NVML tells it."),
    Source.MPS: ("MPS server", "1: it died. 2: it is not ready. 3: it cannot be started."),
    Source.HOST: ("Host", "1: its memory ran out. 2: its disk is full."),
    Source.HANG: ("Hangs", "Found by the profile of the task ([when](protection.md#what-the-node-watches))."),
    Source.DAEMON: ("The node itself", "1: it died. 2: its journal is lost. 3: its runtime directory is lost."),
}


def page() -> str:
    """The whole page."""
    parts = [HEAD + "".join(f"| `{act.value}` | {ACTS[act]} |\n" for act in Act)]
    for source, (title, about) in TITLES.items():
        rows = "".join(_row(one) for one in CLASSES if one.source is source)
        head = "| codes | class | whose | action | restart | |\n|---|---|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{about}\n\n{head}{rows}")
    return "\n".join(parts)


def _row(one: ErrorClass) -> str:
    codes = ", ".join(str(int(code)) for code in one.codes) or "others"
    cells = (codes, f"`{one.name}`", one.whose.value, f"`{one.act.value}`", "yes" if one.restart else "no", one.words)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
