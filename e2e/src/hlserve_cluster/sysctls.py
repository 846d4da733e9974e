"""Kernel settings of the whole machine that a kubelet changes at its start, kept so that they can be set back."""

import json
from pathlib import Path
from typing import Final

from hlserve_cluster.layout import Layout

ROOT: Final = Path("/proc/sys")

CHANGED: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""All that the kubelet's `setupKernelTunables` writes. What lies below `net` belongs to the node's own network namespace."""


def keep(layout: Layout) -> None:
    """Write down the values as they are, once for each cluster."""
    file = _file(layout)
    if not file.exists():
        values = {name: (ROOT / name).read_text().strip() for name in CHANGED if (ROOT / name).exists()}
        file.write_text(json.dumps(values, indent=1))


def restore(layout: Layout) -> None:
    """Set back what was kept. Harmless if nothing was."""
    file = _file(layout)
    if file.exists():
        for name, value in json.loads(file.read_text()).items():
            if (ROOT / name).read_text().strip() != value:
                (ROOT / name).write_text(value)


def _file(layout: Layout) -> Path:
    return layout.directory / "sysctls.json"
