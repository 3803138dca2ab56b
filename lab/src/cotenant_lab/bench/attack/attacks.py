"""The attacks of bench `attack`, and what MPS itself cannot contain."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Start(enum.Enum):
    """How the attacker becomes an offline tenant."""

    RUN = "cotenant run"
    SELF_JOIN = "self-joining"
    OTHER_USER = "another user"
    CONTAINER = "root in a container"


class Group(enum.Enum):
    """What an attack aims at."""

    RESIZE = "resizing"
    OVERWRITE = "overwriting"
    FORGE = "forging"
    BYPASS = "bypass"
    FLOOD = "floods"
    STOP = "stopped processes"
    SOCKET = "sockets"
    MEMORY = "memory"
    CRASH = "crashes"
    FILES = "files"
    WORK = "misleading and endless work"
    CLAIM = "false claims"


_KERNEL_FAULT: Final = "MPS reports a client's fatal fault to all clients of its server"
_DEATH: Final = "MPS leaves undefined what becomes of the others when a client dies with work in flight"
_LONG_WORK: Final = "work that has begun runs to its end; losses are limited to `delay` of the time, not each request"
_LEARNED_TIME: Final = (
    "the gate keeps a learned kernel time while no measurement is free of an active neighbour, and charges too little"
)
_MPS_CONTROL: Final = "the control daemon of MPS obeys every process of its user"
_UNHOOKED_WORK: Final = "work that passes no gate takes device time until the node has found and killed its process"


class Attack(msgspec.Struct, frozen=True):
    """One attack: its program, how it starts, and why it is not contained."""

    name: str
    group: Group
    about: str
    target: str
    """Module, function and argument in `cotenant_lab.programs.attacker`."""
    start: Start = Start.RUN
    is_bypass: bool = False
    """Whether it uses the device without the hook: the node must detect it."""
    damages: bool = False
    """Whether the node needs another runtime directory afterwards."""
    slices_uncontained: str = ""
    mps_uncontained: str = ""
    """Why the online tenant is harmed whatever the node does; empty: it must not be harmed."""

    def reason(self, *, mps: bool) -> str:
        """Return why this attack cannot be contained under this sharing mode, or an empty string."""
        return self.mps_uncontained if mps else self.slices_uncontained


def _bypass(name: str, about: str, target: str) -> Attack:
    return Attack(name, Group.BYPASS, about, f"bypass:{target}", is_bypass=True)


def _work(name: str, about: str, target: str, slices: str = "", *, mps: str = "") -> Attack:
    return Attack(name, Group.WORK, about, f"device:{target}", slices_uncontained=slices, mps_uncontained=mps or slices)


ATTACKS: Final[tuple[Attack, ...]] = (
    # -- resizing
    Attack("resize-zero", Group.RESIZE, "truncate every inherited descriptor", "pages:resize_descriptors:zero"),
    Attack("resize-grow", Group.RESIZE, "extend every inherited descriptor", "pages:resize_descriptors:grow"),
    Attack("resize-punch", Group.RESIZE, "punch holes into every descriptor", "pages:resize_descriptors:punch"),
    Attack("resize-mapped", Group.RESIZE, "truncate the file of every mapping", "pages:resize_mapped:zero",
           Start.SELF_JOIN),
    Attack("resize-remove", Group.RESIZE, "remove the pages behind every mapping", "pages:remove_pages"),
    Attack("resize-other-user", Group.RESIZE, "the same from another user", "pages:resize_descriptors:zero",
           Start.OTHER_USER),
    # -- overwriting
    Attack("overwrite-mprotect", Group.OVERWRITE, "make mappings writable", "pages:overwrite:mprotect"),
    Attack("overwrite-mem", Group.OVERWRITE, "write through /proc/self/mem", "pages:overwrite:mem"),
    Attack("overwrite-reopened", Group.OVERWRITE, "reopen /proc/self/fd for writing", "pages:overwrite:reopened"),
    Attack("overwrite-map-files", Group.OVERWRITE, "reopen /proc/self/map_files", "pages:overwrite:map-files",
           Start.SELF_JOIN),
    Attack("overwrite-descriptor", Group.OVERWRITE, "write to descriptors, map them", "pages:overwrite:descriptor"),
    Attack("overwrite-unsealed", Group.OVERWRITE, "change mode, flags and seals", "pages:overwrite:unsealed"),
    Attack("overwrite-received", Group.OVERWRITE, "descriptors that the node sends", "sockets:attack_what_is_received"),
    Attack("overwrite-container", Group.OVERWRITE, "the same as root in a container", "pages:overwrite:reopened",
           Start.CONTAINER),
    Attack("raise-quota", Group.OVERWRITE, "64 GiB wherever the own quota is found", "pages:raise_quota"),
    # -- forging
    Attack("forge-huge", Group.FORGE, "the largest number in the own pages", "forge:own_value:huge"),
    Attack("forge-negative", Group.FORGE, "negative numbers in the own pages", "forge:own_value:negative"),
    Attack("forge-future", Group.FORGE, "instants in an hour in the own pages", "forge:own_value:future"),
    Attack("forge-random", Group.FORGE, "random bytes in the own pages", "forge:own_random"),
    Attack("forge-peer", Group.FORGE, "other processes' pages on the own ones", "forge:peer_pages"),
    Attack("forge-generation", Group.FORGE, "other generations and indexes", "forge:swapped_words"),
    Attack("forge-pid", Group.FORGE, "the pid of an unrelated process", "forge:victim_pid"),
    Attack("forge-pid-exit", Group.FORGE, "the same, left behind by a dead process", "forge:victim_pid_and_exit"),
    Attack("forge-pid-bypass", Group.FORGE, "the same, and the tenant must be killed", "forge:victim_pid_and_bypass",
           is_bypass=True),
    Attack("arbitration-random", Group.FORGE, "random bytes in the arbitration page", "forge:arbitration_random"),
    Attack("arbitration-future", Group.FORGE, "claims and debt until in an hour", "forge:arbitration_value:future"),
    Attack("arbitration-huge", Group.FORGE, "endless claims and debt", "forge:arbitration_value:negative"),
    Attack("arbitration-wake", Group.FORGE, "wake every sleeper without pause", "forge:wake_storm"),
    Attack("arbitration-park", Group.FORGE, "a thousand threads on its words", "forge:park_threads"),
    # -- bypass
    _bypass("bypass-path", "the driver by its real path, in the hooked process", "by_path"),
    _bypass("bypass-copy", "a copy of the driver", "by_copy"),
    _bypass("bypass-environment", "a program with an empty environment", "by_environment"),
    _bypass("bypass-library-path", "a library path without the hook", "by_library_path"),
    _bypass("bypass-fork", "a forked child", "by_fork"),
    _bypass("bypass-spawn", "posix_spawn, that is vfork", "by_spawn"),
    _bypass("bypass-exec", "a chain of exec", "by_exec_chain"),
    _bypass("bypass-daemon", "two forks and a session of its own", "by_daemon"),
    _bypass("bypass-setuid", "a child of another user", "by_other_user"),
    _bypass("bypass-pid-namespace", "a child in its own pid namespace", "by_namespace:pid"),
    _bypass("bypass-user-namespace", "a child in its own user namespace", "by_namespace:user"),
    _bypass("bypass-raw", "no driver library at all", "by_raw_socket"),
    _bypass("bypass-raw-first", "no driver library at all, and the hook afterwards", "by_raw_socket_first"),
    _bypass("bypass-training", "while the tenant also works through the hook", "while_training"),
    Attack("bypass-launch", Group.BYPASS, "long kernels without asking the gate", "bypass:launch", is_bypass=True,
           slices_uncontained=_UNHOOKED_WORK, mps_uncontained=_UNHOOKED_WORK),
    # -- floods
    Attack("flood-launches", Group.FLOOD, "launches without waiting", "processes:flood_launches"),
    Attack("flood-claims", Group.FLOOD, "eight threads at the gate", "processes:flood_claims"),
    Attack("flood-processes", Group.FLOOD, "eight processes at the gate", "processes:flood_processes"),
    Attack("churn-processes", Group.FLOOD, "processes that end at once", "processes:churn_processes"),
    # -- stopped processes
    Attack("stop-launching", Group.STOP, "stopped while it launches", "processes:stop_while_launching"),
    Attack("stop-allocating", Group.STOP, "stopped while it allocates", "processes:stop_while_allocating"),
    Attack("stop-for-good", Group.STOP, "stopped, with its socket open", "processes:stop_for_good", Start.SELF_JOIN),
    # -- sockets
    Attack("socket-connections", Group.SOCKET, "hundreds of connections", "sockets:flood_connections"),
    Attack("socket-half-frames", Group.SOCKET, "frames that never end", "sockets:half_frames"),
    Attack("socket-huge-frames", Group.SOCKET, "frames of 4 GiB", "sockets:huge_frames"),
    Attack("socket-garbage", Group.SOCKET, "random and mutated messages", "sockets:garbage", Start.OTHER_USER),
    Attack("socket-nested", Group.SOCKET, "deeply nested messages", "sockets:nested"),
    Attack("socket-descriptors", Group.SOCKET, "hundreds of descriptors per message", "sockets:flood_descriptors"),
    Attack("join-flood", Group.SOCKET, "joins without pause", "sockets:flood_joins", Start.OTHER_USER),
    Attack("join-hostile", Group.SOCKET, "values that no tenant may have", "sockets:hostile_joins"),
    Attack("join-online", Group.SOCKET, "online with priority 0", "sockets:join_as_online", Start.OTHER_USER),
    Attack("resume-other", Group.SOCKET, "the slots of other tenants", "sockets:resume_others", Start.OTHER_USER),
    Attack("token-guess", Group.SOCKET, "guessed tokens", "sockets:guess_tokens", Start.OTHER_USER),
    Attack("attach-files", Group.SOCKET, "files that are no pages", "sockets:attach_hostile_files"),
    Attack("attach-shrink", Group.SOCKET, "pages that shrink while they are read", "sockets:attach_and_shrink"),
    Attack("attach-flood", Group.SOCKET, "all indexes of processes", "sockets:attach_flood", Start.OTHER_USER),
    Attack("command-user", Group.SOCKET, "commands of another user", "sockets:command_others", Start.OTHER_USER),
    Attack("command-container", Group.SOCKET, "commands of a container's root", "sockets:command_others",
           Start.CONTAINER),
    # -- memory
    Attack("leak", Group.MEMORY, "allocations until the quota", "processes:leak"),
    Attack("allocation-storm", Group.MEMORY, "allocations from eight threads", "processes:allocation_storm"),
    Attack("allocate-children", Group.MEMORY, "the quota in each of four processes", "processes:allocate_in_children"),
    Attack("ipc-exit", Group.MEMORY, "exported memory whose owner ended", "processes:export_and_exit"),
    # -- crashes
    Attack("crash-address", Group.CRASH, "an illegal address", "processes:crash_illegal_address",
           mps_uncontained=_KERNEL_FAULT),
    Attack("crash-abort", Group.CRASH, "abort during a launch", "processes:crash_abort", mps_uncontained=_DEATH),
    Attack("crash-children", Group.CRASH, "children killed with work in flight", "processes:crash_kill_children",
           mps_uncontained=_DEATH),
    # -- files
    Attack("files-overwrite", Group.FILES, "every file of the runtime directory", "pages:overwrite_runtime_files",
           damages=True),
    Attack("files-delete", Group.FILES, "sockets and files of the node", "pages:delete_runtime_files", damages=True),
    # -- misleading and endless work
    _work("work-long", "kernels as long as a request", "long_kernels:new", _LONG_WORK),
    _work("work-longer", "the same, by kernels that were short before", "long_kernels:known", _LEARNED_TIME),
    _work("work-durations", "short kernels that become long", "change_durations", _LEARNED_TIME),
    _work("work-shapes", "long kernels, each with another grid", "change_shapes", _LONG_WORK),
    _work("work-graphs", "a new graph for each launch", "new_graphs", _LONG_WORK),
    _work("work-collective", "collectives whose peers never come", "collective_without_peers", _LONG_WORK),
    _work("work-priority", "streams of the highest priority", "claim_priority"),
    _work("work-streams", "launches in hundreds of streams", "many_streams_launch"),
    _work("work-sets", "copies and memsets on the device", "flood_sets"),
    _work("work-value", "streams that wait for a value that never comes", "wait_for_no_value", mps=_DEATH),
    _work("work-host-function", "a function on the host that blocks", "block_in_host_function"),
    _work("work-capture", "captures that never end", "capture_without_end"),
    _work("work-queries", "queries from several threads", "query_storm"),
    *(
        _work(f"objects-{kind}", f"{kind} until the driver refuses", f"many_objects:{kind}")
        for kind in ("streams", "events", "contexts", "modules", "graphs")
    ),
    # -- memory in other ways
    Attack("memory-fragments", Group.MEMORY, "many small pieces with holes", "device:fragment"),
    *(
        Attack(f"memory-{way}", Group.MEMORY, f"{what} until the quota", f"device:hoard_by:{way}")
        for way, what in {
            "pool": "memory of a pool",
            "trim": "memory of a pool, freed and trimmed",
            "managed": "managed memory",
            "pinned": "host memory",
            "pitch": "memory with a pitch",
            "reserve": "reserved addresses",
        }.items()
    ),
    # -- false claims
    Attack("claim-status", Group.CLAIM, "process names like lines of /proc", "claims:forge_status", is_bypass=True),
    Attack("claim-status-container", Group.CLAIM, "the same in a container", "claims:forge_status", Start.CONTAINER,
           is_bypass=True),
    Attack("claim-devices", Group.CLAIM, "devices that are no numbers", "claims:hostile_devices", Start.OTHER_USER),
    Attack("claim-devices-container", Group.CLAIM, "the same in a container, which numbers its own devices",
           "claims:hostile_devices", Start.CONTAINER),
    Attack("claim-fields", Group.CLAIM, "fields that no tenant may have", "claims:hostile_fields", Start.OTHER_USER),
    Attack("claim-gangs", Group.CLAIM, "ranks of many jobs, and their pages", "claims:many_gangs"),
    Attack("claim-indexes", Group.CLAIM, "indexes and generations of others", "claims:reattach", Start.OTHER_USER),
    Attack("claim-reports", Group.CLAIM, "reports about a program that does not exist", "claims:false_reports",
           Start.OTHER_USER),
    Attack("claim-tenants", Group.CLAIM, "to be many tenants", "claims:many_tenants", Start.OTHER_USER),
    Attack("claim-and-leave", Group.CLAIM, "joins and departures without pause", "claims:join_and_leave"),
    Attack("claim-suspend", Group.CLAIM, "suspension of other users' programs", "device:suspend_others",
           Start.OTHER_USER),
    Attack("claim-suspend-container", Group.CLAIM, "the same in a container", "device:suspend_others",
           Start.CONTAINER),
    Attack("mps-control", Group.SOCKET, "commands to the control daemon of MPS", "claims:talk_to_mps", damages=True,
           mps_uncontained=_MPS_CONTROL),
    Attack("mps-control-user", Group.SOCKET, "the same from another user", "claims:talk_to_mps", Start.OTHER_USER),
    Attack("requests-deaf", Group.SOCKET, "requests whose answers it does not read", "claims:read_storm:deaf",
           Start.OTHER_USER),
    Attack("requests-storm", Group.SOCKET, "hundreds of requests at once", "claims:read_storm:reading",
           Start.OTHER_USER),
    Attack("attach-unusual", Group.SOCKET, "descriptors that contain themselves", "claims:unusual_descriptors",
           Start.OTHER_USER),
)  # fmt: skip
