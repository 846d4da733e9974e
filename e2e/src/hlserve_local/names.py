"""Hints for misspelt names."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    matches = difflib.get_close_matches(
        name.lower(), by_lower := {item.lower(): item for item in known}, n=1, cutoff=0.6
    )
    return by_lower[matches[0]] if matches else None


def hint(name: str, known: Iterable[str], what: str) -> str:
    """What to write instead: the nearest name, or all that there are."""
    names = sorted(set(known))
    if (match := nearest(name, names)) is not None:
        return f"did you mean {match}?"
    if not names:
        return f"the folder holds no {what}: add one."
    return f"write one of {', '.join(names[:8])}{', …' if len(names) > 8 else ''}, or add that {what}."
