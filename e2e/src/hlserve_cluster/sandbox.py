"""The node's namespaces: network, mounts and process ids of its own, so that ending its first process leaves nothing on the machine."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hlserve_cluster import node, programs
from hlserve_cluster.commands import need
from hlserve_cluster.control_plane import SERVICES
from hlserve_cluster.daemons import Daemon, Daemons
from hlserve_cluster.errors import ClusterError

CABLE: Final = "hlserve0"
"""The machine's end of the pair of interfaces that leads to the node."""

FIRST: Final = "node"
"""Name of the node's first process."""

HIDDEN: Final = ("/run", "/var/lib", "/var/log")
"""Folders that the node sees empty: runtimes keep sockets, namespaces and locks at fixed paths in them."""

CGROUPS: Final = Path("/sys/fs/cgroup")

REMOVAL_SECONDS: Final = 20.0


def create(daemons: Daemons) -> list[str]:
    """Make the namespaces and the cable. Returns the command prefix that runs a program inside them.

    Raises ClusterError when the kernel or a missing privilege forbids it.
    """
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--propagation=private"]
    first = daemons.start(FIRST, [str(programs.path("pause"))], prefix=namespaces)
    # A program that enters a namespace of process ids must fork to be in it, so `nsenter` stays as its parent.
    inside = ["nsenter", f"--target={first.pid}", "--net", "--mount", "--pid"]
    for folder in HIDDEN:
        _run([*inside, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder])
    _run(["ip", "link", "add", CABLE, "type", "veth", "peer", "name", "eth0", "netns", str(first.pid)])
    _run(["ip", "address", "add", f"{node.HOST_ADDRESS}/30", "dev", CABLE])
    _run(["ip", "link", "set", CABLE, "up"])
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{node.NODE_ADDRESS}/30", "dev", "eth0"],
        ["ip", "link", "set", "eth0", "up"],
        ["ip", "link", "add", node.BRIDGE, "type", "bridge"],
        ["ip", "address", "add", f"{node.GATEWAY}/24", "dev", node.BRIDGE],
        ["ip", "link", "set", node.BRIDGE, "up"],
        ["sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"],
    ):
        _run([*inside, *command])
    for destination in (node.PODS, SERVICES):
        _run(["ip", "route", "add", destination, "via", node.NODE_ADDRESS])
    for cgroup in _cgroup_folders():
        _make_cgroup(cgroup)
    return inside


def destroy(first: Daemon | None, daemons: Daemons) -> None:
    """End every process of the node at once; its mounts and its network go with it. Then remove the cable and the cgroups."""
    if first is not None:
        # The kernel ends all processes of a namespace with its first one.
        first.signal(signal.SIGKILL)
        daemons.forget(first)
    subprocess.run([need("ip"), "link", "delete", CABLE], capture_output=True, check=False)
    deadline = time.monotonic() + REMOVAL_SECONDS
    for folder in _cgroup_folders():
        while folder.exists() and not _remove_cgroup(folder):
            if time.monotonic() > deadline:
                raise ClusterError(f"{folder} cannot be removed: processes are left in it, see its cgroup.procs files.")
            time.sleep(0.1)


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run([need(command[0]), *command[1:]], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"`{' '.join(command)}` failed: {error.stderr.strip()}") from None


def _cgroup_folders() -> Iterator[Path]:
    """Where the node's cgroup lies: once in version 2, in each hierarchy in version 1."""
    name = node.CGROUP.lstrip("/")
    if (CGROUPS / "cgroup.controllers").exists():
        yield CGROUPS / name
        return
    for hierarchy in sorted(CGROUPS.iterdir()):
        # The names of joined hierarchies, such as cpu for cpu,cpuacct, are links.
        # The runtime makes a cgroup in systemd's `unified` hierarchy by itself, beside those of version 1.
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            yield hierarchy / name


def _make_cgroup(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    # A new cgroup of version 1's cpuset owns nothing, and no process may enter it until it does.
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (folder / file).exists() and (folder.parent / "cgroup.clone_children").exists():
            (folder / file).write_text((folder.parent / file).read_text())


def _remove_cgroup(folder: Path) -> bool:
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return not folder.exists()
