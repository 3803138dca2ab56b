"""What is known of one model's workers? Who is there at which width, who is wanted, and what waits for them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import ModelSpec
from cotenant.live.clock import monotonic_ns
from cotenant.live.serve.member import Member
from cotenant.live.serve.work import Job


class Crewed(Protocol):
    """A model as its workers know it."""

    spec: ModelSpec

    def recruit(self, width: int) -> Member:
        """Start a worker for it that is held to so many percent."""
        ...

    def terminate(self, member: Member) -> None:
        """End a worker of it that hangs, so that others are not harmed; takes a while, on any thread."""
        ...


class CrewFigures(NamedTuple):
    """What became of workers and of runs that wanted one, since the beginning."""

    workers: int
    """That are there, ready or not."""
    waits: int
    """Runs that found no worker ready."""
    waited_ns: Duration
    narrower: int
    """Runs that were done by a worker narrower than they might have had."""
    ended: int
    """Workers that ended unasked, or could not start."""


class Task:
    """A run that is to be done, or done once more."""

    __slots__ = ("began", "job", "tries", "width")

    def __init__(self, job: Job, width: int) -> None:
        """Not begun, which is what counts as its beginning."""
        self.job = job
        self.width = width
        self.tries = 0
        self.began: Instant = monotonic_ns()


class Post:
    """All workers of one model at one width."""

    __slots__ = ("failures", "not_before", "wanted", "why")

    def __init__(self) -> None:
        """Nobody is wanted."""
        self.wanted = 0
        self.failures = 0
        self.not_before: Instant = 0
        self.why = ""


class Team:
    """One model: its workers at all widths, and what waits for one."""

    __slots__ = ("members", "model", "names", "posts", "waiting")

    def __init__(self, model: Crewed) -> None:
        """Nobody is there and nothing waits."""
        self.model = model
        spec = model.spec
        self.names = tuple(one.name for one in spec.inputs), tuple(one.name for one in spec.outputs)
        """In the order of the spec, by which its workers bind tensors."""
        self.posts: dict[int, Post] = {}
        self.members: list[Member] = []
        self.waiting: deque[Task] = deque()

    def post(self, width: int) -> Post:
        """Its workers at one width, of which there may be none."""
        return self.posts.setdefault(width, Post())

    def at(self, width: int) -> list[Member]:
        """The workers of that width, ready or not."""
        return [one for one in self.members if one.width == width]
