"""Which worker runs what? All workers of one GPU: ready ahead at the widths in use, mended when they die, bounded.

A run of width w is done by a worker of the model that is held to w percent of the SMs; while none is ready, by the
widest narrower one of at least half of that, or it waits. A worker that dies takes its run with it, which is tried
once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration, Instant
from cotenant.live.clock import monotonic_ns
from cotenant.live.serve.member import Member
from cotenant.live.serve.parcel import Check, Did, Do, Failed, Hello, Sorry, lay_out, send
from cotenant.live.serve.team import Crewed, CrewFigures, Task, Team
from cotenant.live.serve.work import Job, Outcome, Tell, split
from cotenant.policy.protect.backoff import delay_ns

_LOOK_S: Final = 0.25
_BACKOFF_NS: Final = 200 * MILLISECOND_NS
_BACKOFF_CAP_NS: Final = 30 * SECOND_NS
_WELL_NS: Final = 30 * SECOND_NS
"""A worker that lived this long died of something new."""
_HOPELESS: Final = 3
"""Starts that failed in a row, after which runs that wait for it are told so."""


class Limits(NamedTuple):
    """What workers may take."""

    workers: int
    """At once, over all models."""
    run_ns: Duration
    """After which a run is given up and its worker ended."""
    start_ns: Duration
    """Within which a worker must be ready."""


class Crew:
    """The workers of one GPU. Everything happens on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, tell: Tell, say: Callable[[str], None]) -> None:
        """Nobody is there yet."""
        self._loop = loop
        self._limits = limits
        self._tell = tell
        self._say = say
        self._teams: dict[int, Team] = {}  # by the id of the model, which is alive while it is here
        self._doing: dict[Member, Task] = {}
        self._leaving: list[Member] = []
        self._ending: dict[asyncio.Future[None], Member] = {}  # another thread is at it: it must not be forgotten
        self._ages: dict[Member, Instant] = {}
        self._waits = self._waited_ns = self._narrower = self._ended = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._look: asyncio.TimerHandle | None = loop.call_later(_LOOK_S, self._look_around)

    @property
    def count(self) -> int:
        """Of workers, ready or not."""
        return sum(len(team.members) for team in self._teams.values())

    def figures(self) -> CrewFigures:
        """For those who look."""
        return CrewFigures(self.count, self._waits, self._waited_ns, self._narrower, self._ended)

    def widths(self) -> list[int]:
        """Of all workers, ready or not."""
        return sorted(one.width for team in self._teams.values() for one in team.members)

    # Models.

    def join(self, model: Crewed, first: Member | None = None) -> None:
        """A model has workers from now on; one that was started to see whether it can be is the first."""
        team = self._teams.setdefault(id(model), Team(model))
        if first is not None:
            team.post(first.width).wanted = 1
            self._watch(team, first)
            self._greeted(team, first)

    def want(self, model: Crewed, copies: Mapping[int, int]) -> None:
        """Have so many workers at each of these widths, as far as there is room; first one of each."""
        team = self._teams[id(model)]
        for count in range(1, max(copies.values(), default=0) + 1):
            for width, most in copies.items():
                post = team.post(width)
                post.wanted = max(post.wanted, min(count, most))
            self._man(team)

    def dismiss(self, model: Crewed) -> None:
        """Nothing of it runs and nothing waits: its workers may go."""
        team = self._teams.pop(id(model), None)
        if team is None:
            return
        for task in team.waiting:
            self._fail(task, "the model is gone")
        for member in list(team.members):
            self._let_go(team, member)

    async def settled(self) -> None:
        """Until nobody is about to be ready."""
        await self._settled.wait()

    def _settle(self) -> None:
        if all(one.hello is not None for team in self._teams.values() for one in team.members):
            self._settled.set()
        else:
            self._settled.clear()

    def close(self) -> None:
        """End all of them."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for team in list(self._teams.values()):
            self.dismiss(team.model)
        for member in self._leaving:
            member.end()
            member.forget()
        self._leaving.clear()

    # Runs.

    def give(self, job: Job, width: int) -> None:
        """Have a run done; its end is told, whatever becomes of it."""
        team = self._teams[id(job.model)]
        task = Task(job, width)
        member = self._free(team, width)
        if member is None or member.width != width:
            self._more(team, width)
        if member is None:
            self._waits += 1
            team.waiting.append(task)
        else:
            self._begin(team, member, task)

    def _free(self, team: Team, width: int) -> Member | None:
        found: Member | None = None
        for one in team.members:
            if one.hello is None or one in self._doing or not width <= 2 * one.width <= 2 * width:
                continue
            if found is None or one.width > found.width:
                found = one
        return found

    def _more(self, team: Team, width: int) -> None:
        """Every worker of that width is busy, or there is none: the next such run shall find one."""
        post = team.post(width)
        there = team.at(width)
        if all(one in self._doing for one in there):
            post.wanted = max(post.wanted, len(there) + 1)
            self._man(team)

    def _begin(self, team: Team, member: Member, task: Task) -> None:
        job = task.job
        spec = team.model.spec
        try:
            laid, descriptor = lay_out(spec.inputs, list(zip(*job.parts, strict=True)), member.given)
        except (ValueError, OSError, MemoryError) as error:
            self._fail(task, str(error))
            return
        now = monotonic_ns()
        self._waited_ns += now - task.began
        self._narrower += member.width < task.width
        task.began = now
        self._doing[member] = task
        try:
            member.tell(Do(job.run.run, job.run.rows, task.began, laid, *team.names), descriptor)
        except OSError:
            self._lost(team, member)

    def _fail(self, task: Task, why: str) -> None:
        failure = f"model {task.job.model.spec.name!r} failed: {why}"
        self._tell(Outcome(task.job.run, (), failure, monotonic_ns() - task.began, monotonic_ns()))

    def _next(self, team: Team, member: Member) -> None:
        """Somebody is free: what waited longest and may run there, does."""
        for place, task in enumerate(team.waiting):
            if task.width <= 2 * member.width <= 2 * task.width:
                del team.waiting[place]
                self._begin(team, member, task)
                return

    # What workers say.

    def _watch(self, team: Team, member: Member) -> None:
        team.members.append(member)
        self._ages[member] = monotonic_ns()
        member.line.setblocking(False)
        self._loop.add_reader(member.line.fileno(), self._hear, team, member)
        self._settle()

    def _hear(self, team: Team, member: Member) -> None:
        try:
            word = member.hear()
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError) as error:  # no worker of ours speaks like that
            member.kill()
            self._lost(team, member, str(error))
            return
        if isinstance(word, Did):
            self._did(team, member, word)
        elif isinstance(word, Failed):
            self._failed(team, member, word)
        elif isinstance(word, Hello):
            self._greeted(team, member)
        elif word is None or isinstance(word, Sorry):
            self._lost(team, member, "" if word is None else word.why)

    def _greeted(self, team: Team, member: Member) -> None:
        self._loop.add_reader(member.pidfd, self._died, team, member)
        post = team.post(member.width)
        post.why = ""
        self._settle()
        self._next(team, member)

    def _did(self, team: Team, member: Member, word: Did) -> None:
        """What it made is copied before its next run, which begins before anybody hears of this one."""
        task = self._doing.pop(member)
        job = task.job
        failure = ""
        answers: Sequence[Sequence[Any]] = ()
        try:
            outputs = [member.seen(one) for one in word.tensors]
            answers = [outputs] if len(job.parts) == 1 else split(job.model, outputs, job.rows)
        except ValueError as error:
            failure = f"model {team.model.spec.name!r} failed: {error}"
        member.idle_since = monotonic_ns()
        self._next(team, member)
        self._tell(Outcome(job.run, answers, failure, word.took_ns, monotonic_ns()))

    def _failed(self, team: Team, member: Member, word: Failed) -> None:
        if word.is_last:
            self._lost(team, member, word.why)
            return
        task = self._doing.pop(member)
        self._next(team, member)
        self._fail(task, word.why)

    def _died(self, team: Team, member: Member) -> None:
        """Its process is gone; what it still said is read first."""
        while member in team.members:
            try:
                word = member.hear()
            except (OSError, ValueError):
                word = None
            if isinstance(word, Did):
                self._did(team, member, word)
            elif isinstance(word, Failed | Sorry):
                self._lost(team, member, word.why)
            elif word is None:
                self._lost(team, member)

    def _lost(self, team: Team, member: Member, why: str = "") -> None:
        """It is gone, or as good as: another one takes its place, and its run is tried once more."""
        if member not in team.members:
            return
        was_ready = member.hello is not None
        self._ended += 1
        self._part(team, member)
        why = why or member.ending()
        post = team.post(member.width)
        if monotonic_ns() - self._ages.pop(member) > _WELL_NS:
            post.failures = 0
        post.failures += 1
        post.why = why
        post.not_before = monotonic_ns() + delay_ns(post.failures - was_ready, _BACKOFF_NS, _BACKOFF_CAP_NS)
        name = f"the worker of {team.model.spec.name!r} at {member.width} %"
        self._say(f"{name} {'ended' if was_ready else 'cannot start'}: {why}; it is started again")
        task = self._doing.pop(member, None)
        if task is not None:
            task.tries += 1
            if task.tries > 1:
                self._fail(task, f"{name} ended while it ran, twice: {why}")
            else:
                team.waiting.appendleft(task)
        if was_ready:
            self._check_others()
        self._man(team)

    def _check_others(self) -> None:
        """Under MPS one client's fault may have taken the device from others, and those who idle would not know."""
        for team in list(self._teams.values()):
            for member in list(team.members):
                if member.hello is not None and member not in self._doing:
                    try:
                        send(member.line, Check())
                    except OSError:
                        self._lost(team, member)

    # Who is there.

    def _man(self, team: Team) -> None:
        """Start who is wanted and may be; where there is no room, who idled longest elsewhere goes."""
        now = monotonic_ns()
        for width, post in team.posts.items():
            while len(team.at(width)) < post.wanted and now >= post.not_before:
                if self.count >= self._limits.workers and not self._make_room(team, width):
                    break  # looked at again when there is room
                try:
                    self._watch(team, team.model.recruit(width))
                except OSError as error:
                    post.why = str(error)
                    post.failures += 1
                    post.not_before = now + delay_ns(post.failures, _BACKOFF_NS, _BACKOFF_CAP_NS)

    def _make_room(self, team: Team, width: int) -> bool:
        """Only for a run that waits: what is ready ahead does not drive others out."""
        if not any(task.width == width for task in team.waiting) or self._free(team, width) is not None:
            return False
        idle = [
            (one.idle_since, place, home, one)
            for place, home in enumerate(self._teams.values())
            for one in home.members
            if one not in self._doing and one.hello is not None
        ]
        if not idle:
            return False
        _, _, home, member = min(idle, key=lambda one: one[:2])
        home.post(member.width).wanted -= 1
        self._let_go(home, member)
        return True

    def _let_go(self, team: Team, member: Member) -> None:
        self._part(team, member)
        self._ages.pop(member, None)

    def _part(self, team: Team, member: Member) -> None:
        team.members.remove(member)
        self._loop.remove_reader(member.line.fileno())
        if member.hello is not None and member.pidfd >= 0:
            self._loop.remove_reader(member.pidfd)
        member.leave()
        self._leaving.append(member)
        self._settle()

    def _look_around(self) -> None:
        """Who hangs, who may be started again, who can be buried."""
        self._look = self._loop.call_later(_LOOK_S, self._look_around)
        now = monotonic_ns()
        for team in list(self._teams.values()):
            for member in list(team.members):
                task = self._doing.get(member)
                if task is not None and now - task.began > self._limits.run_ns:
                    self._give_up(team, member, task)
                elif member.hello is None and now - self._ages[member] > self._limits.start_ns:
                    member.kill()
                    self._lost(team, member, "it was not ready in time")
            self._give_up_waiting(team, now)
            self._man(team)
        for member in list(self._leaving):
            if member.process.poll() is not None and member not in self._ending.values():
                member.forget()
                self._leaving.remove(member)

    def _give_up(self, team: Team, member: Member, task: Task) -> None:
        """A worker that hangs is no worker: others must not wait for its end, which takes a while."""
        del self._doing[member]
        ending = self._loop.run_in_executor(None, team.model.terminate, member)
        self._ending[ending] = member
        ending.add_done_callback(self._ending.pop)
        self._fail(task, f"a run of {task.job.run.rows} rows took longer than {self._limits.run_ns / SECOND_NS:g} s")
        self._lost(team, member, "its run took too long")

    def _give_up_waiting(self, team: Team, now: Instant) -> None:
        for task in list(team.waiting):
            post = team.post(task.width)
            hopeless = post.failures >= _HOPELESS and not team.at(task.width)
            if hopeless or now - task.began > self._limits.run_ns:
                team.waiting.remove(task)
                self._fail(task, f"no worker of {task.width} % is ready: {post.why or 'all are busy'}")
