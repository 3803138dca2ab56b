"""The commands of `cotenant profile`: list, show, import, export, compare and prune profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError, SetupError
from cotenant.predict.gap_fill import NEIGHBOUR_NS, Fill, predict_fill
from cotenant.profile.import_files import as_profile, read_recordings
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.profile.profile_file import encode_profile
from cotenant.profile.store import ProfileStore, StoredProfile
from cotenant.runner.atomic_file import replace_file
from cotenant.runner.clock import unix_ns
from cotenant.workload.launch_files import image_of, script_of
from cotenant.workload.timeline import Timeline


class KernelChange(msgspec.Struct, frozen=True):
    """One kernel in two profiles; a profile without the kernel has no time of it."""

    name: str
    before_ns: float | None
    after_ns: float | None
    share: float
    """The share of the later profile's device time, or of the earlier one's if the kernel is gone."""

    @property
    def ratio(self) -> float | None:
        """Return the time after divided by the time before."""
        return self.after_ns / self.before_ns if self.before_ns and self.after_ns is not None else None


def find_profile(store: ProfileStore, task: str, device: str) -> StoredProfile:
    """Return the one profile whose task, or a unique part of it, is given; `device` selects among several."""
    keys = store.keys()
    if not keys:
        raise SetupError(f"{store.path} holds no profile yet; record one with: cotenant profile record -- COMMAND")
    exact = [key for key in keys if key.task == task]
    matches = [key for key in exact or keys if task in key.task and device in key.device]
    if not matches:
        raise ConfigError("TASK", task, "no profile has this task; see `cotenant profile list`")
    if len(matches) > 1:
        several = "; ".join(f"{key.task!r} on {key.device or 'an unknown device'}" for key in matches[:4])
        raise ConfigError(
            "TASK", task, f"{len(matches)} profiles match ({several}); give more of the task, or --device NAME"
        )
    stored = store.get(matches[0])
    if stored is None:
        raise SetupError(f"every recording of {matches[0].task!r} is damaged; record it again")
    return stored


def load_profile(store: ProfileStore, named: str, device: str) -> Profile:
    """Return a profile of the store, or of a file if `named` is one."""
    if Path(named).is_file():
        profiles = [as_profile(recording) for recording in read_recordings(Path(named))]
        if len(profiles) != 1:
            raise ConfigError("FILE", named, f"it holds {len(profiles)} recordings; import it and name one of them")
        return profiles[0]
    return find_profile(store, named, device).profile


def all_profiles(store: ProfileStore) -> list[StoredProfile]:
    """Return all profiles of the store."""
    return [stored for key in store.keys() if (stored := store.get(key)) is not None]  # noqa: SIM118  not a dictionary


def import_profiles(
    store: ProfileStore, files: Sequence[str], task: str, device: str, image: str, script: str
) -> list[Profile]:
    """Import files, all of them or none; for a single timeline also write its image and launch script."""
    recordings = [recording for name in files for recording in read_recordings(Path(name))]
    if (image or script) and (len(recordings) != 1 or not isinstance(recordings[0], Timeline)):
        raise ConfigError("--image", image or script, f"needs one timeline; {len(recordings)} recordings were named")
    if task and len(recordings) != 1:
        raise ConfigError("--task", task, f"{len(recordings)} recordings cannot have one name; import them one by one")
    profiles = []
    for recording in recordings:
        profile = as_profile(recording)
        named = msgspec.structs.replace(profile, task=task or profile.task, device=device or profile.device)
        profiles.append(named)
    for path, write in ((image, image_of), (script, script_of)):
        if path and isinstance(recordings[0], Timeline):
            write_file(Path(path), write(recordings[0]).encode())
    for profile in profiles:
        store.add(profile, unix_ns())
    return profiles


def export(profile: Profile, target: str) -> bytes:
    """Return the profile as a file's content, and write it to `target` if given."""
    data = encode_profile(profile)
    if target:
        write_file(Path(target), data)
    return data


def prune(store: ProfileStore, task: str, older_ns: int | None, keep: int | None) -> int:
    """Delete recordings of one task or of all: by age, by number, or all of them; return how many."""
    keys = [key for key in store.keys() if not task or key.task == task]  # noqa: SIM118  not a dictionary
    if task and not keys:
        raise ConfigError("--task", task, "no profile has this task; see `cotenant profile list`")
    deletes_all = older_ns is None and keep is None
    before_ns = 0 if older_ns is None else unix_ns() - older_ns
    return store.prune(keys, before_ns, 0 if deletes_all else 1 << 62 if keep is None else keep)


def fills(profile: Profile) -> list[Fill]:
    """Return the predicted fill of the idle gaps by co-running tenants of several kernel lengths."""
    return [predict_fill(profile, kernel_ns) for kernel_ns in NEIGHBOUR_NS]


def difference(before: Profile, after: Profile) -> list[KernelChange]:
    """Return the kernels of both profiles, those with the most device time first."""
    sides = [{timing.kernel: timing for timing in profile.timings} for profile in (before, after)]
    totals = [max(profile.device_ns, 1.0) for profile in (before, after)]
    changes = []
    for kernel in dict.fromkeys((*sides[1], *sides[0])):
        first, second = sides[0].get(kernel), sides[1].get(kernel)
        share = second.expected_ns / totals[1] if second else first.expected_ns / totals[0] if first else 0.0
        changes.append(KernelChange(kernel_label(first or second), _mean(first), _mean(second), share))
    return sorted(changes, key=lambda change: -change.share)


def kernel_label(timing: KernelTiming | None) -> str:
    """Return a kernel's name with its grid and block size."""
    assert timing is not None
    kernel = timing.kernel
    grid, block = ("x".join(str(side) for side in extent) for extent in (kernel.grid, kernel.block))
    return f"{kernel.function} <{grid}, {block}>"


def _mean(timing: KernelTiming | None) -> float | None:
    return timing.mean_device_ns if timing is not None and timing.device.count else None


def write_file(path: Path, data: bytes) -> None:
    """Write a file that the user named."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise ConfigError("FILE", str(path), f"it cannot be written: {error.strerror}") from None


def keys_json(profiles: list[StoredProfile]) -> list[dict[str, object]]:
    """Return the list of `profile list --json`."""
    return [
        {
            "task": stored.profile.task,
            "device": stored.profile.device,
            "runs": stored.profile.runs,
            "kernels": len(stored.profile.timings),
            "launches": sum(timing.launches for timing in stored.profile.timings),
            "device_ns": round(stored.profile.device_ns),
            "span_ns": stored.profile.span_ns,
            "busy_ns": stored.profile.busy_ns,
            "recorded_unix_ns": stored.recorded_ns,
        }
        for stored in profiles
    ]


def profile_json(profile: Profile) -> dict[str, object]:
    """Return the object of `profile show --json`."""
    return {
        "task": profile.task,
        "device": profile.device,
        "runs": profile.runs,
        "span_ns": profile.span_ns,
        "busy_ns": profile.busy_ns,
        "idle_ns": profile.idle_ns,
        "kernels": [
            {
                "function": timing.kernel.function,
                "work": timing.kernel.work,
                "grid": timing.kernel.grid,
                "block": timing.kernel.block,
                "shared_bytes": timing.kernel.shared_bytes,
                "launches": timing.launches,
                "timed": timing.device.count,
                "mean_device_ns": round(timing.mean_device_ns, 1),
                "p99_device_ns": timing.device.quantile(0.99),
                "mean_gap_ns": round(timing.mean_gap_ns, 1),
                "blocks_per_sm": timing.blocks_per_sm,
                "memory_bound": timing.memory_bound,
            }
            for timing in sorted(profile.timings, key=lambda timing: -timing.expected_ns)
        ],
        "fill": fills_json(fills(profile)),
    }


def fills_json(predictions: Sequence[Fill]) -> list[dict[str, object]]:
    """Return the predicted fills as JSON values."""
    return [
        {
            "kernel_ns": fill.kernel_ns,
            "filled_ns": fill.filled_ns,
            "filled_part": round(fill.filled_part, 4),
            "slowdown": round(fill.slowdown, 4),
        }
        for fill in predictions
    ]
