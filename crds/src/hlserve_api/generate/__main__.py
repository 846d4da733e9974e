"""`python -m hlserve_api.generate [--check] [--root DIR]`: write generated files, or say which are out of date."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hlserve_api.generate.files import differences, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when all is in order, 1 when `--check` finds a difference, 2 for a folder that is no repository of ours."""
    parser = argparse.ArgumentParser(
        prog="python -m hlserve_api.generate", description="Generate CRDs, schemas and reference pages."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name every file that differs")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: the current folder)")
    options = parser.parse_args(arguments)
    root: Path = options.root
    if not (root / "crds" / "pyproject.toml").is_file():
        sys.stderr.write(f"{root} is not the repository: run this in its top folder, or give --root\n")
        return 2
    if not options.check:
        for path in write(root):
            sys.stdout.write(f"wrote {path}\n")
        return 0
    found = differences(root)
    for sentence in found:
        sys.stderr.write(f"{sentence}\n")
    if found:
        sys.stderr.write("run `make generate` (python -m hlserve_api.generate) and commit the result\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
