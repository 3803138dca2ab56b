"""Shares, in millionths of a whole."""

from __future__ import annotations

from typing import Final

WHOLE_PPM: Final = 1_000_000
"""The whole, of which a share is a part."""
