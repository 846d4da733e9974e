"""What a profile needs of the machine, and what is missing of it, with the one command that installs it."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from hlserve_cluster import node, programs
from hlserve_cluster.commands import find
from hlserve_cluster.control_plane import SERVICES
from hlserve_cluster.layout import SOURCES
from hlserve_cluster.sandbox import CABLE

_API_COMMANDS: Final = {"etcd": "etcd-server"}
_FULL_COMMANDS: Final = {
    **_API_COMMANDS,
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "curl": "curl",
}
_CNI_PACKAGE: Final = "containernetworking-plugins"
_IMAGE_COMMANDS: Final = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}


def problems(profile: str, names: Sequence[str], *, images: bool = False) -> list[str]:
    """Sentences about what is missing for a profile that needs these programs; none: it can start."""
    found = []
    unbuilt = [name for name in names if not programs.PROGRAMS[name].cached]
    packages = _missing_packages(profile, unbuilt, images=images)
    if packages:
        found.append(
            f"Missing Debian packages. Run: apt-get install --yes --no-install-recommends {' '.join(packages)}"
        )
    if any((SOURCES / name / "go.mod").exists() for name in unbuilt):
        found += _go_problems(unbuilt)
    if profile == "full":
        found += _privilege_problems()
        found += _route_problems()
    return found


def _missing_packages(profile: str, unbuilt: Sequence[str], *, images: bool) -> list[str]:
    commands = dict(_FULL_COMMANDS if profile == "full" else _API_COMMANDS)
    if "pause" in unbuilt:
        commands["gcc"] = "gcc libc6-dev"
    if images:
        commands |= _IMAGE_COMMANDS
    packages = {package for command, package in commands.items() if find(command) is None}
    if profile == "full" and not (Path(node.CNI_PROGRAMS) / "bridge").exists():
        packages.add(_CNI_PACKAGE)
    return sorted(packages)


def _go_problems(unbuilt: Sequence[str]) -> list[str]:
    wanted = max(_go_version((SOURCES / name / "go.mod").read_text()) for name in unbuilt if _is_module(name))
    program = find("go")
    if program is None:
        return [f"Go {'.'.join(map(str, wanted))} or newer is missing: {', '.join(unbuilt)} must be built with it."]
    said = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    if _go_version(said) < wanted:
        return [
            f"Go {'.'.join(map(str, wanted))} or newer is needed to build {', '.join(unbuilt)}; this is {said.strip()}."
        ]
    return []


def _is_module(name: str) -> bool:
    return (SOURCES / name / "go.mod").exists()


def _go_version(text: str) -> tuple[int, int]:
    found = re.search(r"\bgo ?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _privilege_problems() -> list[str]:
    if os.geteuid() != 0:
        return [
            "The profile full makes namespaces, mounts and cgroups, which only root may. PROFILE=api needs no privilege."
        ]
    found = []
    trial = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--propagation=private"]
    if find("unshare"):
        done = subprocess.run(
            [*trial, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            found.append(f"This machine allows no namespaces or mounts ({done.stderr.strip()}). Use PROFILE=api here.")
    if not any(Path("/sys/fs/cgroup").glob("*/cgroup.procs")) and not Path("/sys/fs/cgroup/cgroup.procs").exists():
        found.append("No cgroups are mounted below /sys/fs/cgroup. Mount them, or use PROFILE=api.")
    return found


def _route_problems() -> list[str]:
    ip = find("ip")
    if ip is None:
        return []
    said = subprocess.run([ip, "-json", "-4", "route", "show"], capture_output=True, text=True, check=False).stdout
    ours = [ip_network(node.PODS), ip_network(SERVICES), ip_network(f"{node.HOST_ADDRESS}/30", strict=False)]
    found = []
    for route in json.loads(said or "[]"):
        destination = route.get("dst", "default")
        if destination == "default" or route.get("dev") == CABLE:
            continue
        if any(ip_network(destination).overlaps(network) for network in ours):
            found.append(f"This machine has a route to {destination}, which the cluster uses for its own network.")
    return found
