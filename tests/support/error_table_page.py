"""Generate docs/reference/errors.md from the table of error classes.

`python -m tests.support.error_table_page > docs/reference/errors.md` writes the page.
"""

from __future__ import annotations

import sys

from cotenant.node.model.fault import ErrorClass, Remedy, Source
from cotenant.node.policy.protect.errors import CLASSES

HEAD = """# Errors

The classes of errors and the action that the node takes for each. This page is generated from
`src/cotenant/node/policy/protect/errors.py` by `python -m tests.support.error_table_page`; a test compares them. It has
run on the software GPU only ([fault injection](../how-to/inject-faults.md)); the behaviour of real hardware is taken
from `cuda.h` 13.0 and NVIDIA's
[Xid catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).

*Scope* is the smallest unit that must be restarted: the tenant, the MPS server, the device, or the node. *Restart* is
whether `cotenant run --restart on-failure` [starts the program again](../concepts/protection.md#restart): "no" means
that the end was requested, or that a new start would end in the same way.

| action | meaning |
|---|---|
"""

ACTIONS = {
    Remedy.NONE: "none: the process has ended, only the call failed, or the error is only reported",
    Remedy.END: "the tenant [ends gracefully](../concepts/protection.md#how-a-program-ends), after "
    "`protect.fault_grace` to end by itself",
    Remedy.KILL: "the tenant is killed at once",
    Remedy.EVICT: "the node itself kills all processes of the tenant at once, online tenants included",
    Remedy.RESTART_SERVER: "the MPS server is restarted; new offline tenants wait for the former online tenants",
    Remedy.DRAIN: "the device admits no tenant and its offline tenants are ended, until all tenants have left it",
    Remedy.DISABLE: "the device admits no tenant until it responds again",
}

TITLES = {
    Source.SIGNAL: ("Signals", "A signal ended the program; its process and its resources are gone."),
    Source.CUDA: (
        "CUDA codes",
        "The first result of a driver call after which a process cannot continue, as the hook observed it.",
    ),
    Source.XID: ("Xids", "Errors that the driver writes to the kernel log, as reported by NVML."),
    Source.MPS: ("MPS server", "1: it died. 2: it is not ready. 3: it cannot be started."),
    Source.HOST: ("Host", "1: its memory ran out. 2: its disk is full."),
    Source.HANG: (
        "Hangs",
        "Detected by the profile of the task ([monitor](../concepts/protection.md#what-the-node-watches)).",
    ),
    Source.DAEMON: ("Node", "1: it died. 2: its journal is lost. 3: its runtime directory is lost."),
    Source.PAGES: (
        "Invalid pages",
        (
            "The pages of a process contain what no hook writes ([memory](../concepts/memory.md#verified-use)): "
            "1: a smaller counter. 2: another process. 3: an impossible amount. 4: an impossible instant. "
            "5: impossible shared memory."
        ),
    ),
}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD + "".join(f"| `{remedy.value}` | {ACTIONS[remedy]} |\n" for remedy in Remedy)]
    for source, (title, about) in TITLES.items():
        rows = "".join(_row(error) for error in CLASSES if error.source is source)
        head = "| codes | class | scope | action | restart | description |\n|---|---|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{about}\n\n{head}{rows}")
    return "\n".join(parts)


def _row(error: ErrorClass) -> str:
    codes = ", ".join(str(int(code)) for code in error.codes) or "others"
    cells = (
        codes,
        f"`{error.name}`",
        error.scope.value,
        f"`{error.remedy.value}`",
        "yes" if error.restart else "no",
        error.description,
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
