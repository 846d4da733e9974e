"""Which build of the router runs: its version, its Python, and whether its hot modules are compiled."""

import sys
from importlib import metadata

from hlserve_router import outcome


def compiled() -> bool:
    """True if the hot modules were compiled by mypyc (`make compile`); they are compiled all together or not at all."""
    return not outcome.__file__.endswith(".py")


def describe() -> str:
    """The build in a few words, as 0.1.0 (Python 3.11.7, from source)."""
    version = metadata.version("hlserve-router")
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{version} (Python {python}, {'compiled' if compiled() else 'from source'})"
