"""Writes the router's generated reference files; with --check it says which are not current.

Run as `python -m hlserve_router.testing.reference [--check]` from the repository root.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hlserve_router import openapi
from hlserve_router.testing.clients import page


def files(root: Path) -> Mapping[str, str]:
    """The text of each file, by its path below `root`."""
    return {
        "docs/reference/schemas/router-openapi.json": json.dumps(openapi.document(), indent=2, ensure_ascii=False)
        + "\n",
        "docs/reference/clients.md": page.render(page.versions(root)),
    }


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 written or current, 1 a file is not current, 2 misuse."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: python -m hlserve_router.testing.reference [--check]\n")
        return 2
    root = Path()
    stale = [name for name, text in files(root).items() if not _holds(root / name, text)]
    if not arguments:
        for name in stale:
            (root / name).write_text(files(root)[name], encoding="utf-8")
        return 0
    sys.stderr.write("".join(f"{name} is not what the code makes of it. Run: make generate.\n" for name in stale))
    return 1 if stale else 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
