"""Programs of the machine, found also where an ordinary user's search path does not look."""

import os
import shutil
from typing import Final

from hlserve_cluster.errors import ClusterError

_MORE: Final = ("/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def find(command: str) -> str | None:
    """The path of a command."""
    return shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE]))


def need(command: str) -> str:
    """The path of a command. Raises ClusterError if the machine has none."""
    found = find(command)
    if found is None:
        raise ClusterError(f"{command} is missing. Run: make cluster-preflight.")
    return found
