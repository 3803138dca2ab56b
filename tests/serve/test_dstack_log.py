"""Golden log of the scheduler's decisions in a small scenario."""

from cotenant.serve.model.event import (
    ModelReady,
    ModelSpec,
    RejectRequest,
    RequestArrived,
    Run,
    RunFinished,
    ServerEvent,
)
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.state.server import ServerMachine, ServerSettings

MS = 1_000_000
ALONE_MS = {"long": 30, "short": 4}
SLO_MS = {"long": 120, "short": 20}
ARRIVALS = (
    *((0, "long"), (1, "short"), (2, "long"), (3, "long"), (4, "short"), (5, "short"), (6, "long")),
    *((40, "short"), (41, "short"), (42, "short"), (43, "short"), (44, "short"), (45, "short"), (46, "short")),
    *((60, "long"), (61, "long"), (62, "long"), (63, "long"), (64, "long"), (65, "long"), (66, "short")),
)

LOG = [
    "0.0 run long [1] on 2",
    "5.0 refuse 6 too-late",
    "16.7 run short [2] on 2",
    "18.9 run short [5] on 2",
    "21.1 run long [3, 4] on 2",
    "44.0 refuse 12 too-late",
    "45.0 refuse 13 too-late",
    "51.1 run short [8, 9, 10, 11] on 2",
    "58.7 run short [14] on 2",
    "60.9 run long [7, 15] on 2",
    "66.0 refuse 21 too-late",
    "90.9 run long [16, 17] on 2",
    "120.9 run long [18, 19] on 1",
    "174.9 run long [20] on 2",
]


def run_ms(model: str, rows: int, units: int) -> float:
    return ALONE_MS[model] * (0.2 + 0.8 * rows) / (1.8 if units == 2 else 1.0)


def table(model: str) -> RunTimes:
    cells = [(units, rows, int(run_ms(model, rows, units) * MS)) for units in (1, 2) for rows in (1, 2, 4)]
    return RunTimes(2, tuple(RunTime(units, rows, ns, ns * 11 // 10) for units, rows, ns in cells), 2)


def decision_log() -> list[str]:
    """Return every decision with its instant in ms."""
    server = ServerMachine(ServerSettings(2, schedule="dstack"))
    for key, name in enumerate(("long", "short"), 1):
        spec = ModelSpec(name, "1", "test", (), (), max_batch=4, slo_ns=SLO_MS[name] * MS)
        server.handle(ModelReady(spec, key, table(name)), now=0)
    events: list[tuple[int, int, ServerEvent]] = []
    for number, (arrival_ms, name) in enumerate(ARRIVALS, 1):
        events.append((arrival_ms * MS, number, RequestArrived(number, name, 1, 0)))
    lines = []
    while events:
        events.sort(key=lambda event: event[:2])
        now, _, event = events.pop(0)
        for action in server.handle(event, now=now):
            if isinstance(action, Run):
                run_ns = int(run_ms(action.model, action.rows, action.units) * MS)
                events.append((now + run_ns, 1000 + action.run, RunFinished(action.run, run_ns)))
                lines.append(f"{now / MS:.1f} run {action.model} {list(action.requests)} on {action.units}")
            elif isinstance(action, RejectRequest):
                lines.append(f"{now / MS:.1f} refuse {action.request} {action.why.value}")
    return lines


def test_decisions_match_the_golden_log() -> None:
    assert decision_log() == LOG
