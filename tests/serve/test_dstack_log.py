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
    "16.7 run short [2] on 2",
    "18.9 run short [5] on 1",
    "18.9 run short [6] on 1",
    "22.9 run long [3, 4, 7] on 2",
    "40.0 refuse 8 too-late",
    "41.0 refuse 9 too-late",
    "42.0 refuse 10 too-late",
    "43.0 refuse 11 too-late",
    "44.0 refuse 12 too-late",
    "45.0 refuse 13 too-late",
    "46.0 refuse 14 too-late",
    "66.2 run short [21] on 1",
    "70.2 run long [15, 16, 17, 18] on 2",
    "126.9 run long [19, 20] on 2",
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
