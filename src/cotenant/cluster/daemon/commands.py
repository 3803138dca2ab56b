"""Implementation of the commands of users and operators: jobs, lists, tokens and identities."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.cluster import wire
from cotenant.cluster.daemon.client import ControllerUnreachableError, Conversation, talk
from cotenant.cluster.daemon.directories import operator_of
from cotenant.cluster.daemon.enrol import NAME_REMEDY, check_name, obtain_user, token_text
from cotenant.cluster.daemon.identity import Identity, read_identity
from cotenant.cluster.model.cluster import JobReport, JobSpec, JobState, Quota
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError
from cotenant.node.client.hook_setup import known_use
from cotenant.node.directories import Directories
from cotenant.profile.store import ProfileStore
from cotenant.runner.address import split_address
from cotenant.runner.clock import pause

IDENTITY_VARIABLE: Final = "COTENANT_IDENTITY"
_EVERY_S: Final = 1.0
_FLAGS: Final = {
    "work_ns": "--work",
    "memory_bytes": "--memory",
    "types": "--type",
    "min_share_ppm": "--min-share",
    "environment": "--env",
    "command": "COMMAND",
}
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def identity_of(given: str, controller: str, environ: Mapping[str, str], directories: Directories) -> Identity:
    """Who asks whom: the identity that was named, else the operator of the controller on this machine."""
    named = given or environ.get(IDENTITY_VARIABLE, "")
    identity = read_identity(Path(named)) if named else operator_of(directories)
    if not controller:
        return identity
    split_address(controller, "--controller")
    return msgspec.structs.replace(identity, controller=controller)


def spec_of(
    options: Mapping[str, Any], command: Sequence[str], identity: Identity, environ: Mapping[str, str]
) -> JobSpec:
    """The job that the flags describe; raises `ConfigError` for what cannot be one."""
    user = options["user"] or (identity.name if identity.role is Role.USER else _login())
    name = options["name"] or _new_name(command[0])
    check_name(name, "--name")
    check_name(user, "--user")
    variables = tuple(_variable(given, environ) for given in options["environment"])
    spec = JobSpec(**{**options, "name": name, "user": user, "command": tuple(command), "environment": variables})
    try:
        return msgspec.convert(msgspec.to_builtins(spec), JobSpec)  # which looks at every limit
    except msgspec.ValidationError as error:
        raise _blame(str(error), spec) from None


def _blame(message: str, spec: JobSpec) -> ConfigError:
    """What is wrong, by the flag that set it; a spec is an array, of which the place is told."""
    what, _, where = message.partition(" - at `$[")
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
    with talk(identity) as controller:
        controller.ask(request, wire.Success)


def cancel(identity: Identity, names: Sequence[str]) -> None:
    """Have jobs ended, or not begun."""
    with talk(identity) as controller:
        for name in names:
            controller.ask(wire.Cancel(wire.VERSION, check_name(name, "JOB")), wire.Success)


def follow(identity: Identity, name: str, say: Callable[[str], None]) -> Iterator[JobReport]:
    """How a job stands, every second until it is over; a controller that is away is waited for."""
    is_away = False
    while True:
        try:
            with talk(identity) as controller:
                for found in _looks(controller, name):
                    is_away = False
                    yield found
                    if found.state.is_over:
                        return
        except ControllerUnreachableError as error:
            if not is_away:
                say(f"{error}; waiting for it")
            is_away = True
        pause(_EVERY_S)


def _looks(controller: Conversation, name: str) -> Iterator[JobReport]:
    while True:
        message = controller.ask(wire.ListJobs(wire.VERSION, (name,)), wire.JobPage)
        if not message.jobs:
            raise ConfigError("JOB", name, "the cluster remembers no such job")
        yield message.jobs[0]
        pause(_EVERY_S)


class JobList(msgspec.Struct, frozen=True):
    """All pages of a list of jobs."""

    jobs: list[JobReport]
    now_ns: int


def jobs(identity: Identity, names: Sequence[str], user: str, *, also_over: bool) -> JobList:
    """The jobs that the cluster remembers, in the order in which they came."""
    wanted = tuple(check_name(name, "JOB") for name in names)
    asked = wire.ListJobs(wire.VERSION, wanted, user, also_over)
    found: list[JobReport] = []
    with talk(identity) as controller:
        while True:
            page = controller.ask(asked, wire.JobPage)
            found += page.jobs
            if page.is_last:
                break
            asked = wire.ListJobs(wire.VERSION, more=True)
    missing = [name for name in wanted if name not in {job.spec.name for job in found}]
    if missing:
        raise ConfigError("JOB", missing[0], "the cluster remembers no such job; see `cotenant jobs`")
    return JobList(found, page.now_ns)


def watch_jobs(look: Callable[[], JobList], say: Callable[[str], None]) -> Iterator[JobList]:
    """A look every second, until stopped; a controller that is away is waited for."""
    is_away = False
    while True:
        try:
            yield look()
            is_away = False
        except ControllerUnreachableError as error:
            if not is_away:
                say(f"{error}; waiting for it")
            is_away = True
        pause(_EVERY_S)


class NodeList(msgspec.Struct, frozen=True):
    """All pages of a list of nodes."""

    nodes: list[wire.NodeLine]
    now_ns: int


def nodes(identity: Identity) -> NodeList:
    """The nodes of the cluster."""
    asked = wire.ListNodes(wire.VERSION)
    found: list[wire.NodeLine] = []
    with talk(identity) as controller:
        while True:
            page = controller.ask(asked, wire.NodePage)
            found += page.nodes
            if page.is_last:
                return NodeList(found, page.now_ns)
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
    with talk(identity) as controller:
        made = controller.ask(asked, wire.NewToken)
    return token_text(made.secret, identity.authority), made.controller


def make_user(identity: Identity, user: str, path: Path) -> Identity:
    """An identity for a user, in a file that is to be handed to the user."""
    if path.exists():
        raise ConfigError("--to", str(path), "is there already; remove it, or name another file")
    return obtain_user(identity, user, path)


def change(identity: Identity, request: wire.Drain | wire.SetQuota | wire.Revoke | wire.Forget) -> None:
    """Have an operator's wish done."""
    with talk(identity) as controller:
        controller.ask(request, wire.Success)


def quota_of(user: str, gpus: int | None, weight: int) -> Quota:
    """How much a user may have; None: as much as there is."""
    name = check_name(user, "USER")
    quota = Quota(name, weight=weight) if gpus is None else Quota(name, gpus, weight)
    try:
        return msgspec.convert(msgspec.to_builtins(quota), Quota)  # which looks at the limits
    except msgspec.ValidationError as error:
        raise ConfigError("quota", user, f"{error}; write --gpus of at least 0 and --weight from 1 to 1000") from None


def exit_code_of(job: JobReport) -> int:
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
