"""Quantities of the Kubernetes API: "3000", "3k" and "2Gi" as whole numbers.

The syntax is that of k8s.io/apimachinery/pkg/api/resource. The API server rewrites a quantity in its shortest form
before it calls a webhook, so that `nvidia.com/gpumem: 3000` arrives as "3k".
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from cotenant.errors import ConfigError

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]{1,30}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
    r"(?P<unit>|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})",
    re.ASCII,
)
_UNITS: Final = {
    "": Decimal(1),
    "n": Decimal(1).scaleb(-9),
    "u": Decimal(1).scaleb(-6),
    "m": Decimal(1).scaleb(-3),
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_LARGEST: Final = (1 << 63) - 1


def whole_quantity(value: Any, field: str, remedy: str) -> int:
    """Return a quantity that must be a whole number of at least 0."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(field, value, remedy)
    unit = match["unit"]
    scale = Decimal(10) ** int(unit[1:]) if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei" else _UNITS[unit]
    exact = Decimal(match["number"]) * scale
    if match["sign"] == "-" and exact:
        raise ConfigError(field, value, f"must not be negative; {remedy}")
    if exact > _LARGEST or exact != exact.to_integral_value():
        raise ConfigError(field, value, remedy)
    return int(exact)
