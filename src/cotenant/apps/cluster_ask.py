"""Wires what users and operators ask of a cluster: jobs in and out, lists, tokens, identities."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.apps.hook import known_use
from cotenant.domain.cluster import JobSpec, JobState, JobTold, Quota
from cotenant.errors import ConfigError
from cotenant.format import cluster_wire as wire
from cotenant.format.cluster_wire import Role
from cotenant.live.address import split_address
from cotenant.live.clock import pause
from cotenant.live.cluster.ask import BrainAwayError, Conversation, talk
from cotenant.live.cluster.enrol import NAME_REMEDY, check_name, obtain_user, token_text
from cotenant.live.cluster.identity import Identity, read_identity
from cotenant.live.cluster.places import operator_of
from cotenant.live.directory import Places
from cotenant.live.profile.store import ProfileStore

IDENTITY_VARIABLE: Final = "COTENANT_IDENTITY"
_EVERY_S: Final = 1.0
_FLAGS: Final = {
    "work_ns": "--work",
    "memory_bytes": "--memory",
    "types": "--type",
    "least_ppm": "--least",
    "environment": "--env",
    "command": "COMMAND",
}
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def identity_of(given: str, brain: str, environ: Mapping[str, str], places: Places) -> Identity:
    """Who asks whom: the identity that was named, else the operator of the brain on this machine."""
    named = given or environ.get(IDENTITY_VARIABLE, "")
    identity = read_identity(Path(named)) if named else operator_of(places)
    if not brain:
        return identity
    split_address(brain, "--brain")
    return msgspec.structs.replace(identity, brain=brain)


def spec_of(
    wished: Mapping[str, Any], command: Sequence[str], identity: Identity, environ: Mapping[str, str]
) -> JobSpec:
    """The job that the flags describe; raises `ConfigError` for what cannot be one."""
    user = wished["user"] or (identity.name if identity.role is Role.USER else _login())
    name = wished["name"] or _new_name(command[0])
    check_name(name, "--name")
    check_name(user, "--user")
    variables = tuple(_variable(given, environ) for given in wished["environment"])
    spec = JobSpec(**{**wished, "name": name, "user": user, "command": tuple(command), "environment": variables})
    try:
        return msgspec.convert(msgspec.to_builtins(spec), JobSpec)  # which looks at every limit
    except msgspec.ValidationError as error:
        raise _blame(str(error), spec) from None


def _blame(told: str, spec: JobSpec) -> ConfigError:
    """What is wrong, by the flag that set it; a spec is an array, of which the place is told."""
    what, _, where = told.partition(" - at `$[")
    place = where.partition("]")[0]
    field = spec.__struct_fields__[int(place)] if place.isdigit() else "job"
    flag = _FLAGS.get(field, f"--{field}")
    if "matching regex" in what:  # which is for programs to read
        return ConfigError(flag, ", ".join(getattr(spec, field)), NAME_REMEDY)
    return ConfigError(flag, getattr(spec, field, ""), f"{what[0].lower()}{what[1:]}; see `cotenant submit --help`")


def with_known_use(spec: JobSpec, store: ProfileStore) -> JobSpec:
    """The job with what this machine's profiles say of its kind, if they say anything."""
    use = known_use(spec.profile, store, is_online=False) if spec.profile else None
    return spec if use is None else msgspec.structs.replace(spec, use=use)


def submit(identity: Identity, spec: JobSpec) -> None:
    """Bring a job to the cluster; whether it is taken is known when this returns."""
    request = wire.Submit(wire.VERSION, spec)
    try:
        size_bytes = len(wire.encode(request))
    except UnicodeEncodeError:
        raise ConfigError("COMMAND", spec.command[0], "its words, and all else of a job, must be UTF-8 text") from None
    if size_bytes > wire.USER_LIMIT_BYTES:
        remedy = f"the job takes {size_bytes:,} bytes with its environment, and may take {wire.USER_LIMIT_BYTES:,}"
        raise ConfigError("COMMAND", spec.command[0], f"{remedy}; put some of it into a file")
    with talk(identity) as brain:
        brain.ask(request, wire.Done)


def cancel(identity: Identity, names: Sequence[str]) -> None:
    """Have jobs ended, or not begun."""
    with talk(identity) as brain:
        for name in names:
            brain.ask(wire.Cancel(wire.VERSION, check_name(name, "JOB")), wire.Done)


def follow(identity: Identity, name: str, say: Callable[[str], None]) -> Iterator[JobTold]:
    """How a job stands, every second until it is over; a brain that is away is waited for."""
    is_away = False
    while True:
        try:
            with talk(identity) as brain:
                for found in _looks(brain, name):
                    is_away = False
                    yield found
                    if found.state.is_over:
                        return
        except BrainAwayError as error:
            if not is_away:
                say(f"{error}; waiting for it")
            is_away = True
        pause(_EVERY_S)


def _looks(brain: Conversation, name: str) -> Iterator[JobTold]:
    while True:
        told = brain.ask(wire.ListJobs(wire.VERSION, (name,)), wire.Jobs)
        if not told.jobs:
            raise ConfigError("JOB", name, "the cluster remembers no such job")
        yield told.jobs[0]
        pause(_EVERY_S)


class JobsShown(msgspec.Struct, frozen=True):
    """All pages of a list of jobs."""

    jobs: list[JobTold]
    now_ns: int


def jobs(identity: Identity, names: Sequence[str], user: str, *, also_over: bool) -> JobsShown:
    """The jobs that the cluster remembers, in the order in which they came."""
    wanted = tuple(check_name(name, "JOB") for name in names)
    asked = wire.ListJobs(wire.VERSION, wanted, user, also_over)
    found: list[JobTold] = []
    with talk(identity) as brain:
        while True:
            page = brain.ask(asked, wire.Jobs)
            found += page.jobs
            if page.is_last:
                break
            asked = wire.ListJobs(wire.VERSION, more=True)
    missing = [name for name in wanted if name not in {job.spec.name for job in found}]
    if missing:
        raise ConfigError("JOB", missing[0], "the cluster remembers no such job; see `cotenant jobs`")
    return JobsShown(found, page.now_ns)


def watch_jobs(look: Callable[[], JobsShown], say: Callable[[str], None]) -> Iterator[JobsShown]:
    """A look every second, until stopped; a brain that is away is waited for."""
    is_away = False
    while True:
        try:
            yield look()
            is_away = False
        except BrainAwayError as error:
            if not is_away:
                say(f"{error}; waiting for it")
            is_away = True
        pause(_EVERY_S)


class NodesShown(msgspec.Struct, frozen=True):
    """All pages of a list of nodes."""

    nodes: list[wire.NodeLine]
    now_ns: int


def nodes(identity: Identity) -> NodesShown:
    """The nodes of the cluster."""
    asked = wire.ListNodes(wire.VERSION)
    found: list[wire.NodeLine] = []
    with talk(identity) as brain:
        while True:
            page = brain.ask(asked, wire.Nodes)
            found += page.nodes
            if page.is_last:
                return NodesShown(found, page.now_ns)
            asked = wire.ListNodes(wire.VERSION, more=True)


def make_token(identity: Identity, uses: int, valid_ns: int, node: str) -> tuple[str, str]:
    """A join token, and where to join with it."""
    if node:
        check_name(node, "--node")
    try:
        asked = msgspec.convert(
            {"version": wire.VERSION, "uses": uses, "valid_ns": valid_ns, "node": node}, wire.MakeToken
        )
    except msgspec.ValidationError:
        raise ConfigError("--uses", uses, "write 1 to 100,000 uses, and at most ten years of validity") from None
    with talk(identity) as brain:
        made = brain.ask(asked, wire.TokenMade)
    return token_text(made.secret, identity.authority), made.brain


def make_user(identity: Identity, user: str, path: Path) -> Identity:
    """An identity for a user, in a file that is to be handed to the user."""
    if path.exists():
        raise ConfigError("--to", str(path), "is there already; remove it, or name another file")
    return obtain_user(identity, user, path)


def change(identity: Identity, request: wire.Drain | wire.SetQuota | wire.Revoke | wire.Forget) -> None:
    """Have an operator's wish done."""
    with talk(identity) as brain:
        brain.ask(request, wire.Done)


def quota_of(user: str, gpus: int | None, weight: int) -> Quota:
    """How much a user may have; None: as much as there is."""
    name = check_name(user, "USER")
    quota = Quota(name, weight=weight) if gpus is None else Quota(name, gpus, weight)
    try:
        return msgspec.convert(msgspec.to_builtins(quota), Quota)  # which looks at the limits
    except msgspec.ValidationError as error:
        raise ConfigError("quota", user, f"{error}; write --gpus of at least 0 and --weight from 1 to 1000") from None


def exit_code_of(job: JobTold) -> int:
    """What `submit --wait` ends with."""
    return 0 if job.state is JobState.DONE else 1


def _variable(given: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, is_set, value = given.partition("=")
    if not name:
        raise ConfigError("--env", given, "write NAME=VALUE, or NAME for its value here")
    if not is_set:
        if name not in environ:
            raise ConfigError("--env", given, "is not set here; write NAME=VALUE")
        value = environ[name]
    return name, value


def _new_name(program: str) -> str:
    """A name that nobody else will have: of the program, and a few dice."""
    bare = "".join(letter for letter in Path(program).name if letter in _NAME_CHARACTERS).lstrip("._-")
    return f"{bare[:60] or 'job'}-{secrets.token_hex(4)}"


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"
