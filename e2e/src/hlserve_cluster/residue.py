"""What a cluster could leave behind on the machine, as sets that can be compared before and after. Needs root."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hlserve_cluster.commands import find, need
from hlserve_cluster.sysctls import ROOT

_ALIVE: Final = re.compile(
    # What the kernel counts, measures or draws anew by itself.
    r"kernel/(ns_last_pid|random/|pty/nr|sched_domain|perf_event_max_sample_rate|tainted)|fs/(dentry|file-nr|inode|quota/|aio-nr)"
    r"|net/netfilter/nf_conntrack_count|net/ipv4/tcp_fastopen_key|vm/(stat_refresh|compact_memory|drop_caches)|\.stable_secret"
)


def snapshot() -> dict[str, frozenset[str]]:
    """Kernel settings, interfaces, routes, rules, sets, mounts, namespaces, cgroups and folders, each as a set of lines."""
    return {
        "sysctls": frozenset(_sysctls()),
        "interfaces": frozenset(item["ifname"] for item in _ip("link")),
        "addresses": frozenset(f"{item['ifname']} {a['local']}" for item in _ip("address") for a in item["addr_info"]),
        "routes": frozenset(f"{item['dst']} {item.get('dev')}" for item in _ip("route")),
        "iptables": frozenset(_lines("iptables-save")),
        "ip6tables": frozenset(_lines("ip6tables-save")),
        "ipsets": frozenset(_lines("ipset", "list", "-name")),
        "mounts": frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "namespaces": frozenset(_names(Path("/run/netns"))),
        "cgroups": frozenset(path for path, _, _ in os.walk("/sys/fs/cgroup")),
        "folders": frozenset(entry for folder in _FOLDERS for entry in _names(folder)),
    }


_FOLDERS: Final = tuple(
    map(
        Path,
        ("/", "/run", "/var/run", "/var/lib", "/var/log", "/var/lib/cni", "/opt", "/etc", "/etc/cni", "/usr/libexec"),
    )
)
"""Where runtimes and the kubelet make folders by default."""


def difference(before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]) -> dict[str, list[str]]:
    """What is new (`+`) or gone (`-`), by kind; empty if nothing is."""
    changed = {
        kind: [f"+{line}" for line in sorted(after[kind] - before[kind])]
        + [f"-{line}" for line in sorted(before[kind] - after[kind])]
        for kind in before
    }
    return {kind: lines for kind, lines in changed.items() if lines}


def _sysctls() -> Iterator[str]:
    for folder, _, files in os.walk(ROOT):
        for file in files:
            path = Path(folder, file)
            name = str(path.relative_to(ROOT))
            if _ALIVE.search(name):
                continue
            try:
                yield f"{name}={path.read_text(errors='replace').strip()}"
            except OSError:
                continue  # write-only, or of a feature that is off


def _ip(what: str) -> list[dict[str, Any]]:
    command = [need("ip"), "-json", "-4", what, "show"]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout or "[]")
    return found


def _lines(command: str, *arguments: str) -> Iterator[str]:
    program = find(command)
    if program is None:
        return
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        # Comments hold times, and counters stand in brackets.
        if not line.startswith("#"):
            yield re.sub(r"\[\d+:\d+\]", "", line).strip()


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from (str(entry) for entry in folder.iterdir())
    except OSError:
        return
