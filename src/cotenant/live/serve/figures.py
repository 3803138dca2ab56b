"""What did a model do so far? Counts and sums, as the protocol's statistics and Prometheus show them."""

from __future__ import annotations

from cotenant.domain.histogram import Recorder
from cotenant.domain.instant import Duration, Instant


class Sum:
    """How many, and how long together."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        """None yet."""
        self.count = 0
        self.ns = 0

    def add(self, ns: Duration, count: int = 1) -> None:
        """So many more."""
        self.count += count
        self.ns += ns

    def plain(self) -> dict[str, int]:
        """As the protocol shows it."""
        return {"count": self.count, "ns": self.ns}


class ModelFigures:
    """Of one model, over all its loadings."""

    def __init__(self) -> None:
        """All zero."""
        self.succeeded = Sum()
        self.failed = Sum()
        self.queue = Sum()
        self.compute = Sum()
        self.rows = 0
        self.runs = 0
        self.cancelled = 0
        self.offered = 0
        """Requests with an objective: an SLO, or a timeout of their own."""
        self.admitted = 0
        self.in_time = 0
        """Of these, answered within it."""
        self.lag = Sum()
        """From the end of a run to the answer, over requests."""
        self.refused: dict[str, int] = {}
        self.batches: dict[int, Sum] = {}
        self.last: Instant = 0
        self.took = Recorder()

    def ran(self, rows: int, took_ns: Duration) -> None:
        """A run has ended well."""
        self.runs += 1
        self.rows += rows
        alike = self.batches.get(rows)
        if alike is None:
            alike = self.batches[rows] = Sum()
        alike.add(took_ns)

    def statistics(self, name: str, version: str, last_unix_ms: int) -> dict[str, object]:
        """As the protocol shows it; what is prepared before and after a run is counted as part of the run."""
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
                    "compute_input": {"count": one.count, "ns": 0},
                    "compute_infer": one.plain(),
                    "compute_output": {"count": one.count, "ns": 0},
                }
                for size, one in sorted(self.batches.items())
            ],
        }
