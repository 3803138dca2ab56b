"""Statistics of a model, as the protocol and Prometheus report them."""

from __future__ import annotations

from cotenant.units.histogram import Recorder
from cotenant.units.instant import Duration, Instant


class DurationSum:
    """A count and a total duration."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        """Start at zero."""
        self.count = 0
        self.ns = 0

    def add(self, ns: Duration, count: int = 1) -> None:
        """Add a duration and a number of occurrences."""
        self.count += count
        self.ns += ns

    def plain(self) -> dict[str, int]:
        """Return the sum as an object of the protocol."""
        return {"count": self.count, "ns": self.ns}


class ModelStatistics:
    """Statistics of one model, over all its loaded instances."""

    def __init__(self) -> None:
        """Start at zero."""
        self.succeeded = DurationSum()
        self.failed = DurationSum()
        self.queue = DurationSum()
        self.compute = DurationSum()
        self.rows = 0
        self.runs = 0
        self.cancelled = 0
        self.offered = 0
        """Requests with an objective: an SLO or a timeout."""
        self.admitted = 0
        self.in_time = 0
        """Requests answered within their objective."""
        self.lag = DurationSum()
        """Time from the end of a run to the response, summed over requests."""
        self.refused: dict[str, int] = {}
        self.batches: dict[int, DurationSum] = {}
        self.last_answer: Instant = 0
        self.latencies = Recorder()

    def record_run(self, rows: int, took_ns: Duration) -> None:
        """Count a successful run."""
        self.runs += 1
        self.rows += rows
        same_rows = self.batches.get(rows)
        if same_rows is None:
            same_rows = self.batches[rows] = DurationSum()
        same_rows.add(took_ns)

    def statistics(self, name: str, version: str, last_unix_ms: int) -> dict[str, object]:
        """Return the statistics in the protocol's form; preparation before and after a run counts as part of it."""
        return {
            "name": name,
            "version": version,
            "last_inference": last_unix_ms,
            "inference_count": self.rows,
            "execution_count": self.runs,
            "inference_stats": {
                "success": self.succeeded.plain(),
                "fail": self.failed.plain(),
                "queue": self.queue.plain(),
                "compute_input": {"count": self.compute.count, "ns": 0},
                "compute_infer": self.compute.plain(),
                "compute_output": {"count": self.compute.count, "ns": 0},
                "cache_hit": {"count": 0, "ns": 0},
                "cache_miss": {"count": 0, "ns": 0},
            },
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": {"count": duration.count, "ns": 0},
                    "compute_infer": duration.plain(),
                    "compute_output": {"count": duration.count, "ns": 0},
                }
                for size, duration in sorted(self.batches.items())
            ],
        }
