"""A slow reference of the device model: block by block, in exact fractions, without bandwidth limits."""

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Launch:
    """One kernel of a test case: its client, stream, submission and shape."""

    client: int
    stream: int
    submit_ns: int
    blocks: int
    block_ns: int
    occupancy: int
    priority: int = 0
    sm_cap: int = 0  # of this kernel; 0: none
    ready_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    delayed_ns: Fraction = Fraction(0)
    waiting: int = field(init=False, default=0)
    left_ns: list[int] = field(init=False, default_factory=list)  # of each running block

    def share(self) -> Fraction:
        return Fraction(1, self.occupancy)


@dataclass
class Reference:
    """Serves groups in turn, streams in order, and blocks by priority and readiness, without preemption."""

    sm_count: int
    slice_ns: int
    switch_ns: int
    groups: list[int]  # by client
    caps: list[int]  # by client, in SMs; 0: none
    now: int = field(init=False, default=0)
    queues: dict[tuple[int, int], list[Launch]] = field(init=False, default_factory=dict)
    ready: list[Launch] = field(init=False, default_factory=list)
    active: int | None = field(init=False, default=None)
    resident: int | None = field(init=False, default=None)
    switch_end: int | None = field(init=False, default=None)
    slice_start: int = field(init=False, default=0)
    slice_end: int | None = field(init=False, default=None)

    def run(self, launches: list[Launch]) -> None:
        upcoming = sorted(launches, key=lambda launch: launch.submit_ns)
        while True:
            change = self.next_change()
            if upcoming and (change is None or upcoming[0].submit_ns < change):
                self.pass_time(upcoming[0].submit_ns)
                self.submit(upcoming.pop(0))
            elif change is not None:
                self.pass_time(change)
                self.handle_change()
            else:
                return

    # -- state

    def group(self, launch: Launch) -> int:
        return self.groups[launch.client]

    def of_group(self, group: int | None) -> list[Launch]:
        return [launch for launch in self.ready if self.group(launch) == group]

    def is_on(self, group: int) -> bool:
        return self.active == group and self.switch_end is None

    def held(self, launches: list[Launch]) -> Fraction:
        return sum((len(launch.left_ns) * launch.share() for launch in launches), Fraction(0))

    def placement(self, launches: list[Launch]) -> list[tuple[Launch, int]]:
        """Return how many waiting blocks of each launch could be placed now, if there were only these launches."""
        placed: list[tuple[Launch, int]] = []
        free = self.sm_count - self.held(launches)
        for launch in launches:
            own = self.within_caps(launch, launches, placed, free)
            more = min(launch.waiting, max(0, int(min(free, own) / launch.share())))
            placed.append((launch, more))
            free -= more * launch.share()
            if more < launch.waiting and own >= free + more * launch.share():
                break
        return placed

    def within_caps(
        self, launch: Launch, launches: list[Launch], placed: list[tuple[Launch, int]], free: Fraction
    ) -> Fraction:
        """Return what the launch may take of its client's cap and of every partition that contains its own."""
        own = [other for other in launches if other.client == launch.client]
        limits = [(self.caps[launch.client], own)] if self.caps[launch.client] else []
        for cap in {other.sm_cap for other in own if other.sm_cap >= launch.sm_cap > 0}:
            limits.append((cap, [other for other in own if 0 < other.sm_cap <= cap]))
        rests = [
            cap - self.held(users) - sum((n * other.share() for other, n in placed if other in users), Fraction(0))
            for cap, users in limits
        ]
        return min(rests, default=free)

    # -- time

    def next_change(self) -> int | None:
        instants = [instant for instant in (self.switch_end, self.slice_end) if instant is not None]
        if self.active is not None and self.is_on(self.active):
            instants += [self.now + left for launch in self.of_group(self.active) for left in launch.left_ns]
        return min(instants, default=None)

    def pass_time(self, instant: int) -> None:
        elapsed = instant - self.now
        for launch in self.ready:
            peers = [other for other in self.of_group(self.group(launch)) if other.client == launch.client]
            alone = len(launch.left_ns) + sum(n for other, n in self.placement(peers) if other is launch)
            service = len(launch.left_ns) if self.is_on(self.group(launch)) else 0
            if alone:
                launch.delayed_ns += elapsed * (1 - Fraction(service, alone))
        for launch in self.ready:
            if self.is_on(self.group(launch)):
                launch.left_ns = [left - elapsed for left in launch.left_ns]
        self.now = instant

    # -- changes

    def submit(self, launch: Launch) -> None:
        queue = self.queues.setdefault((launch.client, launch.stream), [])
        queue.append(launch)
        if queue[0] is launch:
            self.make_ready(launch)
        self.settle()

    def make_ready(self, launch: Launch) -> None:
        launch.ready_ns, launch.waiting = self.now, launch.blocks
        before = sum(other.priority <= launch.priority for other in self.ready)
        self.ready.insert(before, launch)

    def handle_change(self) -> None:
        finished = []
        if self.active is not None and self.is_on(self.active):
            for launch in self.of_group(self.active):
                launch.left_ns = [left for left in launch.left_ns if left > 0]
                if not launch.left_ns and not launch.waiting:
                    finished.append(launch)
        for launch in finished:
            launch.end_ns = self.now
            self.ready.remove(launch)
            queue = self.queues[launch.client, launch.stream]
            queue.pop(0)
        if self.switch_end == self.now:
            self.switch_end = None
            self.slice_start = self.now
        for launch in finished:
            queue = self.queues[launch.client, launch.stream]
            if queue and queue[0].ready_ns is None:
                self.make_ready(queue[0])
        self.settle()

    def settle(self) -> None:
        self.update_turn()
        if self.slice_end == self.now:
            self.turn_to(self.next_in_turn(self.active))
            self.update_turn()
        if self.active is not None and self.is_on(self.active):
            for launch, blocks in self.placement(self.of_group(self.active)):
                if blocks and launch.start_ns is None:
                    launch.start_ns = self.now
                launch.waiting -= blocks
                launch.left_ns += [launch.block_ns] * blocks

    def next_in_turn(self, after: int | None) -> int:
        runnable = sorted({self.group(launch) for launch in self.ready})
        return next((group for group in runnable if after is not None and group > after), runnable[0])

    def turn_to(self, group: int) -> None:
        switch = self.resident not in (None, group) and self.switch_ns > 0
        self.active = self.resident = group
        self.switch_end = self.now + self.switch_ns if switch else None
        self.slice_start, self.slice_end = self.now, None

    def update_turn(self) -> None:
        if self.active is not None and not self.of_group(self.active):
            idle, self.active, self.switch_end, self.slice_end = self.active, None, None, None
            if self.ready:
                self.turn_to(self.next_in_turn(idle))
        elif self.active is None and self.ready:
            self.turn_to(self.next_in_turn(self.resident))
        if self.active is None or self.switch_end is not None:
            return
        if len(self.of_group(self.active)) == len(self.ready):
            self.slice_end = None
        elif self.slice_end is None:
            slices = max(1, -(-(self.now - self.slice_start) // self.slice_ns))
            self.slice_end = self.slice_start + slices * self.slice_ns
