"""Find an entry of a catalogue by name: forgiving about case and separators, strict about everything else."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

Entry = TypeVar("Entry")


class UnknownNameError(ValueError):
    """A name that a catalogue does not hold. The message lists the names that it does hold."""


def fold(name: str) -> str:
    """The form in which names are compared: lower case without separators, so `A100_80G` finds `A100-80G`."""
    return "".join(character for character in name.lower() if character.isalnum() or character == ".")


def find(catalogue: Mapping[str, Entry], aliases: Mapping[str, str], name: str, kind: str) -> Entry:
    """The entry called `name`, or called by one of its `aliases` (alias to catalogue name).

    Raises UnknownNameError with the known names, the nearest one first if there is one.
    """
    names = {fold(known): known for known in catalogue}
    names.update({fold(alias): known for alias, known in aliases.items()})
    known = names.get(fold(name))
    if known is not None:
        return catalogue[known]
    nearest = get_close_matches(fold(name), names, n=1)
    hint = f"did you mean {names[nearest[0]]}? " if nearest else ""
    raise UnknownNameError(f"unknown {kind} {name!r}: {hint}known are {', '.join(sorted(catalogue))}")
