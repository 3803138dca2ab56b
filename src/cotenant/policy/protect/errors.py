"""Errors: the table of everything that can go wrong, and whose fault means what. docs/errors.md is made from it.

Codes of CUDA are those of cuda.h 13.0, which also says after which of them a process must be begun anew. Xids and whom
they concern are NVIDIA's Xid catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); where it
leaves the choice open, the choice is ours.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.fault import Act, DaemonTrouble, ErrorClass, HostTrouble, MpsTrouble, Source, Whose

_SIGNALS: Final = (
    ErrorClass(
        *(Source.SIGNAL, (1, 2, 3, 15), "asked-to-end", Whose.TENANT, Act.NONE, False),
        "SIGHUP, SIGINT, SIGQUIT or SIGTERM ended it: somebody wanted that",
    ),
    ErrorClass(
        *(Source.SIGNAL, (4, 5, 7, 8, 11, 31), "crash", Whose.TENANT, Act.NONE, True),
        "SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV or SIGSYS ended it: a mistake of the program on the host",
    ),
    ErrorClass(
        *(Source.SIGNAL, (6,), "abort", Whose.TENANT, Act.NONE, True),
        "SIGABRT: the program gave up, as libraries do after a CUDA error that nobody handled",
    ),
    ErrorClass(
        *(Source.SIGNAL, (9,), "killed", Whose.TENANT, Act.NONE, True),
        "SIGKILL: by a person, by the node, or by the kernel when the host's memory ran out (see out-of-host-memory)",
    ),
    ErrorClass(
        *(Source.SIGNAL, (24, 25), "host-limit", Whose.TENANT, Act.NONE, False),
        "SIGXCPU or SIGXFSZ: a limit that was set for the program; it would meet it again",
    ),
    ErrorClass(
        *(Source.SIGNAL, (), "other-signal", Whose.TENANT, Act.NONE, True),
        "any other signal that ended it",
    ),
)

_CUDA: Final = (
    ErrorClass(
        *(Source.CUDA, (2,), "out-of-device-memory", Whose.TENANT, Act.NONE, True),
        "past its quota, or the device is full: the call failed, the process can go on",
    ),
    ErrorClass(
        *(Source.CUDA, (700, 714, 715, 716, 717, 718, 719, 721), "bad-kernel", Whose.TENANT, Act.END, True),
        "a kernel did what it must not: the process can no longer use the device. Under MPS all clients of the server "
        "are told so, whosever kernel it was, and each must be begun anew",
    ),
    ErrorClass(
        *(Source.CUDA, (710,), "device-assert", Whose.TENANT, Act.END, True),
        "an assertion in a kernel failed: its context is lost",
    ),
    ErrorClass(
        *(Source.CUDA, (702,), "launch-timeout", Whose.TENANT, Act.END, True),
        "the driver stopped a kernel that took too long",
    ),
    ErrorClass(
        *(Source.CUDA, (226,), "contained", Whose.TENANT, Act.END, True),
        "an error of the hardware that it kept to this process",
    ),
    ErrorClass(
        *(Source.CUDA, (214, 220), "hardware-error", Whose.TENANT, Act.END, True),
        "uncorrectable memory or NVLink error: the process is lost; what becomes of the device, its Xid says",
    ),
    ErrorClass(
        *(Source.CUDA, (911,), "external-device", Whose.TENANT, Act.END, True),
        "a device behind this one failed while work waited for it: the process must be begun anew",
    ),
    ErrorClass(
        *(Source.CUDA, (805, 806, 810), "mps-lost", Whose.SERVER, Act.END, True),
        "the MPS server is gone or has thrown the client out: the process must be begun anew, on a new server",
    ),
    ErrorClass(
        *(Source.CUDA, (807,), "mps-recovers", Whose.SERVER, Act.NONE, True),
        "the MPS server takes nobody until those whom a fault struck have left: try again later",
    ),
    ErrorClass(
        *(Source.CUDA, (808, 809), "mps-full", Whose.SERVER, Act.NONE, True),
        "the MPS server has as many clients or connections as it can: try again later",
    ),
    ErrorClass(
        *(Source.CUDA, (46, 100, 101), "device-gone", Whose.DEVICE, Act.NONE, True),
        "the process does not find its device: lost, or kept by somebody else",
    ),
    ErrorClass(
        *(Source.CUDA, (999,), "unknown", Whose.TENANT, Act.END, True),
        "the driver cannot say what it is; a device that fell off the bus looks like this. The process is lost",
    ),
    ErrorClass(
        *(Source.CUDA, (), "call-failed", Whose.TENANT, Act.NONE, True),
        "any other code: that call failed, the process can go on",
    ),
)

_XIDS: Final = (
    ErrorClass(
        *(Source.XID, (11, 13, 31, 32, 43, 68, 69, 109), "tenant-fault", Whose.TENANT, Act.END, True),
        "an exception of its kernel, an access to memory it does not have, a command stream that makes no sense, a "
        "decoder's exception, a context that cannot be switched out: the device stays healthy",
    ),
    ErrorClass(
        *(Source.XID, (45,), "cleanup", Whose.TENANT, Act.END, True),
        "the channels of a process are removed, mostly after an error or a kill that was told before",
    ),
    ErrorClass(
        *(Source.XID, (8,), "stopped", Whose.TENANT, Act.END, True),
        "a kernel exceeded the driver's time limit and was stopped",
    ),
    ErrorClass(
        *(Source.XID, (94, 137), "contained-fault", Whose.TENANT, Act.END, True),
        "a memory or NVLink error that the hardware kept to one process; a bad page is replaced at the next reset",
    ),
    ErrorClass(
        *(Source.XID, (48, 95, 140), "memory-fault", Whose.DEVICE, Act.DRAIN, True),
        "uncorrectable memory error that reaches every process of the device: all must be begun anew, on hardware "
        "after a reset of the device",
    ),
    ErrorClass(
        *(Source.XID, (63, 92, 121, 154, 156), "told", Whose.DEVICE, Act.NONE, True),
        "a row to be replaced at the next reset, many corrected errors, a link that was trained again, another way to "
        "recover: nobody is struck now, an administrator should look",
    ),
    ErrorClass(
        *(Source.XID, (64, 157), "repair-failed", Whose.DEVICE, Act.DRAIN, True),
        "a bad row could not be replaced: the next error there is not contained",
    ),
    ErrorClass(
        *(Source.XID, (74, 144, 145, 146, 147, 148, 149, 150), "link-fault", Whose.DEVICE, Act.DRAIN, True),
        "NVLink failed: programs over several devices fail, and it needs a reset",
    ),
    ErrorClass(
        *(Source.XID, (38, 46, 61, 62, 110, 119, 120, 143, 158), "firmware-fault", Whose.DEVICE, Act.DISABLE, True),
        "a processor inside of the device or its firmware (PMU, GSP) does not answer, or a security check failed: only "
        "a reset helps",
    ),
    ErrorClass(
        *(Source.XID, (79,), "off-the-bus", Whose.DEVICE, Act.DISABLE, True),
        "the device fell off the bus: every process on it is lost",
    ),
    ErrorClass(
        *(Source.XID, (), "other-xid", Whose.DEVICE, Act.NONE, True),
        "an Xid that is not in this table: told, and nothing is done by itself",
    ),
)

_OTHERS: Final = (
    ErrorClass(
        *(Source.MPS, (MpsTrouble.SERVER_DIED,), "mps-server-died", Whose.SERVER, Act.RESTART_SERVER, True),
        "its clients are lost; it is started anew, and offline waits until online is back",
    ),
    ErrorClass(
        *(Source.MPS, (MpsTrouble.NOT_READY,), "mps-server-recovers", Whose.SERVER, Act.NONE, True),
        "it takes nobody until those whom a fault struck have left; who joins is told to try again",
    ),
    ErrorClass(
        *(Source.MPS, (), "mps-not-started", Whose.SERVER, Act.DISABLE, True),
        "the control daemon or the server cannot be started: nobody joins the device until one answers",
    ),
    ErrorClass(
        *(Source.HOST, (HostTrouble.OUT_OF_MEMORY,), "out-of-host-memory", Whose.TENANT, Act.NONE, True),
        "the kernel killed it because the host, or its control group, ran out of memory",
    ),
    ErrorClass(
        *(Source.HOST, (), "host-trouble", Whose.NODE, Act.NONE, True),
        "the host lacks something, as room on the disk: tenants go on as they are, the node says what is missing",
    ),
    ErrorClass(
        *(Source.HANG, (), "hang", Whose.TENANT, Act.KILL, True),
        "an offline kernel runs many times longer than its profile says. Waiting for it would be waiting for ever: "
        "its process is killed. Online tenants are only told of",
    ),
    ErrorClass(
        *(Source.DAEMON, (DaemonTrouble.DIED,), "daemon-died", Whose.NODE, Act.NONE, True),
        "tenants go on under their last terms and come back to their slots when it is started again",
    ),
    ErrorClass(
        *(Source.DAEMON, (DaemonTrouble.JOURNAL_LOST,), "journal-lost", Whose.NODE, Act.NONE, True),
        "it begins with an empty memory: tenants that run join again under the slot they had, if it is free",
    ),
    ErrorClass(
        *(Source.DAEMON, (), "pages-lost", Whose.NODE, Act.NONE, True),
        "its runtime directory was emptied: tenants keep the pages they have mapped, new ones get new files",
    ),
)

CLASSES: Final = (*_SIGNALS, *_CUDA, *_XIDS, *_OTHERS)

_BY_CODE: Final = {(one.source, code): one for one in CLASSES for code in one.codes}
_OTHERWISE: Final = {one.source: one for one in CLASSES if not one.codes}


def classify(source: Source, code: int) -> ErrorClass:
    """The one class of this error."""
    return _BY_CODE.get((source, code)) or _OTHERWISE[source]
