"""Conversions between the units that names in this package end in."""

from typing import Final

US_PER_SECOND: Final = 1_000_000
US_PER_MS: Final = 1000


def ms_from_us(microseconds: float) -> float:
    """Milliseconds."""
    return microseconds / US_PER_MS


def us_from_ms(milliseconds: float) -> int:
    """Microseconds, rounded to whole ones."""
    return round(milliseconds * US_PER_MS)
