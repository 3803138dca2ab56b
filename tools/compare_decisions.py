"""Compare the decisions of two trees: `python tools/compare_decisions.py OLD_ROOT NEW_ROOT`.

Each root has a .venv with its version installed. Every scenario runs in both trees with several seeds; journals, JSON
results and golden logs must be equal once names are mapped. The mapping of names is inferred and must be one to one:
the same old name always becomes the same new name, and no two old names become one. Numbers must be equal. Of free
text the numbers must be equal, in any order. The last line counts what was compared; the exit code is 1 if anything
differs.
"""

# ruff: noqa: INP001, T201, S603  a script that prints and runs both trees' own commands

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

SEEDS = (1, 2, 3)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PREFIX = struct.Struct("<III")


class DifferenceError(Exception):
    """Two decisions are not equal."""


class NameMap:
    """A one-to-one mapping of names that is inferred from the pairs it is shown."""

    def __init__(self) -> None:
        self.new_of: dict[str, str] = {}
        self.old_of: dict[str, str] = {}

    def check(self, old: str, new: str) -> None:
        """Record the pair, or raise if it contradicts an earlier one."""
        if self.new_of.setdefault(old, new) != new:
            raise DifferenceError(f"{old!r} became {self.new_of[old]!r} before, and {new!r} here")
        if self.old_of.setdefault(new, old) != old:
            raise DifferenceError(f"{new!r} was {self.old_of[new]!r} before, and {old!r} here")


def compare(old: Any, new: Any, names: NameMap, *, is_tag: bool = False) -> int:
    """Compare two decoded values; return the number of leaves that were compared.

    The first element of an array is the tag of a struct; tags have names of their own.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        if len(old) != len(new):
            raise DifferenceError(f"{sorted(old)} and {sorted(new)} have different lengths")
        count = 0
        for (old_key, old_value), (new_key, new_value) in zip(old.items(), new.items(), strict=True):
            count += compare(old_key, new_key, names) + compare(old_value, new_value, names)
        return count
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        if len(old) != len(new):
            raise DifferenceError(f"{old!r} and {new!r} have different lengths")
        return sum(
            compare(one, other, names, is_tag=not place)
            for place, (one, other) in enumerate(zip(old, new, strict=True))
        )
    if isinstance(old, str) and isinstance(new, str):
        if _NAME.fullmatch(old) and _NAME.fullmatch(new):
            names.check(f"{old} (tag)" if is_tag else old, f"{new} (tag)" if is_tag else new)
        elif numbers(old) != numbers(new):
            raise DifferenceError(f"the numbers of {old!r} and {new!r} differ")
        return 1
    if type(old) is not type(new) or old != new:
        raise DifferenceError(f"{old!r} is not {new!r}")
    return 1


def numbers(text: str) -> Counter[str]:
    """Return the numbers in a text; zero does not count, because one text may say "no neighbours" for it."""
    return Counter(number for number in _NUMBER.findall(text) if float(number))


def turns(journal: Path) -> list[Any]:
    """Return the turns of a journal as plain lists."""
    data = journal.read_bytes()
    at, found = data.index(b"\n") + 1, []
    while at < len(data):
        length, _, _ = _PREFIX.unpack_from(data, at)
        at += _PREFIX.size
        found.append(msgspec.msgpack.decode(data[at : at + length]))
        at += length
    return found


def run(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(root / ".venv/bin/python"), "-m", "cotenant", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{root}: cotenant {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def compare_scenario(roots: tuple[Path, Path], name: str, seed: int, names: NameMap) -> tuple[int, int]:
    """Run one scenario in both trees; return how many turns (lines of a cluster) and leaves were compared."""
    text = (roots[1] / "scenarios" / name).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as home:
        if "[[tenants]]" in text:
            journals = [Path(home) / str(place) for place in range(2)]
            for root, journal in zip(roots, journals, strict=True):
                run(root, "simulate", f"scenarios/{name}", "--seed", str(seed), "--journal", str(journal))
            pair = [turns(journal) for journal in journals]
            if len(pair[0]) != len(pair[1]):
                raise DifferenceError(f"{len(pair[0])} and {len(pair[1])} turns")
            return len(pair[0]), sum(compare(one, other, names) for one, other in zip(*pair, strict=True))
        results = [
            json.loads(run(root, "simulate", f"scenarios/{name}", "--seed", str(seed), "--json").splitlines()[-1])
            for root in roots
        ]
        lines = 0
        if all(result.pop("decisions", "") for result in results):  # a digest of lines that contain worded reasons
            lines = compare_lines(*(decision_lines(root, name, seed) for root in roots))
        return lines, compare(_untimed(results[0]), _untimed(results[1]), names)


def decision_lines(root: Path, name: str, seed: int) -> list[str]:
    """Return the line of every decision in a cluster scenario, with its instant."""
    flag = "--verbose" if "--verbose" in run(root, "simulate", "--help") else "--log"
    output = run(root, "simulate", f"scenarios/{name}", "--seed", str(seed), flag)
    return [line for line in output.splitlines() if re.match(r" *[0-9.]+ s ", line)]


def _untimed(result: Any) -> Any:
    """Leave out what depends on the machine's speed."""
    if isinstance(result, dict):
        return {
            key: _untimed(value) for key, value in result.items() if not re.search(r"wall|took|seconds_real|rss", key)
        }
    return [_untimed(value) for value in result] if isinstance(result, list) else result


def compare_logs(old: Path, new: Path) -> int:
    """Compare two golden logs line by line by their numbers; return the number of lines."""
    return compare_lines(*(path.read_text(encoding="utf-8").splitlines() for path in (old, new)))


def compare_lines(old: list[str], new: list[str]) -> int:
    """Compare lines of text by their numbers; return the number of lines."""
    if len(old) != len(new):
        raise DifferenceError(f"{len(old)} and {len(new)} lines")
    for number, (old_line, new_line) in enumerate(zip(old, new, strict=True), start=1):
        if numbers(old_line) != numbers(new_line):
            raise DifferenceError(f"line {number}: {old_line!r} and {new_line!r}")
    return len(old)


def main(old: Path, new: Path) -> int:
    """Compare everything; print one line each and the totals."""
    names, failures = NameMap(), 0
    total: Counter[str] = Counter()
    for scenario in sorted(path.name for path in (new / "scenarios").glob("*.toml")):
        if not (old / "scenarios" / scenario).exists():
            print(f"{scenario}: only in the new tree")
            continue
        for seed in SEEDS:
            try:
                count, leaves = compare_scenario((old, new), scenario, seed, names)
            except DifferenceError as difference:
                failures += 1
                print(f"{scenario} seed {seed}: DIFFERENT: {difference}")
                continue
            total += Counter(scenarios=1, turns=count, values=leaves)
            print(f"{scenario} seed {seed}: equal, {count} turns, {leaves} values")
    for number, log in enumerate(sorted((old / "scenarios").glob("*.log"))):
        other = sorted((new / "scenarios").glob("*.log"))[number]
        try:
            lines = compare_logs(log, other)
        except DifferenceError as difference:
            failures += 1
            print(f"{log.name}: DIFFERENT: {difference}")
            continue
        total += Counter(logs=1, lines=lines)
        print(f"{log.name} and {other.name}: equal, {lines} lines")
    renamed = {one: other for one, other in names.new_of.items() if one != other}
    print(f"names that changed: {renamed}")
    print(json.dumps({**total, "renamed": len(renamed), "different": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*(Path(argument).resolve() for argument in sys.argv[1:3])))
