"""An import-linter contract that lists, for every component and layer, what it may import.

`.importlinter` contains the table. A row is `importer: imported imported ...`; a name is a component (`predict`) or a
layer of one (`node.state`). Imports within a row's own name are always allowed. The table is exhaustive: every module
below the root package must belong to a row, except a package whose layers have rows and which imports nothing.
"""

from collections.abc import Iterator
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImportsContract(Contract):
    """Every import between rows of the table is one that the importing row allows."""

    type_name = "allowed_imports"
    root = fields.StringField()
    table = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        root, table = cast("str", self.root), cast("list[str]", self.table)
        problems = list(problems_of(graph, root, table))
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(problem)


def problems_of(graph: ImportGraph, root: str, table: list[str]) -> Iterator[str]:
    """Yield what breaks the table: imports, modules without a row, rows without a module."""
    rows = {name.strip(): set(allowed.split()) for name, _, allowed in (row.partition(":") for row in table)}
    yield from (f"the table allows an import of {name!r}, which has no row" for name in sorted(_unknown(rows)))
    unused = set(rows)
    for module in sorted(graph.find_descendants(root)):
        row = _row_of(module, root, rows)
        imported = sorted(graph.find_modules_directly_imported_by(module))
        if row is None:
            is_parent = any(name.startswith(module.removeprefix(f"{root}.") + ".") for name in rows)
            if not is_parent or imported:
                yield f"{module} belongs to no row of the table"
            continue
        unused.discard(row)
        for target_module in imported:
            target = _row_of(target_module, root, rows) if target_module.startswith(f"{root}.") else None
            if target is not None and target != row and not _allows(rows[row], target):
                yield f"{module} imports {target_module}: {row} may not import {target}"
    yield from (f"no module belongs to the row {name!r}: remove it" for name in sorted(unused))


def _unknown(rows: dict[str, set[str]]) -> set[str]:
    """Return the names on the right side of which no row is a part."""
    return {
        name
        for allowed in rows.values()
        for name in allowed
        if not any(row == name or row.startswith(f"{name}.") for row in rows)
    }


def _row_of(module: str, root: str, rows: dict[str, set[str]]) -> str | None:
    """Return the most specific row that contains a module."""
    parts = module.removeprefix(f"{root}.").split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in rows), None)


def _allows(allowed: set[str], target: str) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in allowed)
