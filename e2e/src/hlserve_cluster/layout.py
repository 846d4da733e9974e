"""Where things are: the repository's files, the cache of programs, and the state folder of one cluster."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[3]
"""The working copy that this package lies in."""

SOURCES: Final = REPOSITORY / "e2e" / "cluster"
"""Go modules, requirement files and configuration of the cluster."""


def cache_directory() -> Path:
    """Where built programs are kept: `$XDG_CACHE_HOME/hlserve/cluster`, by default below `~/.cache`."""
    return _base("XDG_CACHE_HOME", ".cache") / "hlserve" / "cluster"


def state_directory(profile: str) -> Path:
    """Where `make cluster-up` keeps a cluster: `$XDG_STATE_HOME/hlserve/cluster-<profile>`, by default below `~/.local/state`."""
    return _base("XDG_STATE_HOME", ".local/state") / "hlserve" / f"cluster-{profile}"


def _base(variable: str, default: str) -> Path:
    # The XDG specification tells to ignore relative paths.
    value = Path(os.environ.get(variable, ""))
    return value if value.is_absolute() else Path.home() / default


@dataclass(frozen=True, slots=True)
class Layout:
    """The state folder of one cluster. Everything that the cluster writes lies below it, and `down` deletes it."""

    directory: Path

    @property
    def certificates(self) -> Path:
        """Keys and certificates."""
        return self.directory / "pki"

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.directory / "log"

    @property
    def processes(self) -> Path:
        """One file for each running process, see `hlserve_cluster.daemons`."""
        return self.directory / "run"

    @property
    def admin(self) -> Path:
        """The kubeconfig of the cluster's administrator: the one for people and tests."""
        return self.kubeconfig("admin")

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one user or component."""
        return self.directory / f"{user}.kubeconfig"

    def certificate(self, name: str) -> Path:
        """A certificate in PEM."""
        return self.certificates / f"{name}.crt"

    def key(self, name: str) -> Path:
        """A private key in PEM."""
        return self.certificates / f"{name}.key"

    def create(self) -> None:
        """Make the folder, for this user only."""
        for folder in (self.directory, self.certificates, self.logs, self.processes):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
