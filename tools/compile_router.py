"""`python tools/compile_router.py`: compiles the router's hot modules with mypyc, as a copy of the package in build/compiled.

Put that folder first on PYTHONPATH and the same commands run compiled; without it they run the source. The copy is whole, so
what runs is never half old and half new.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Final

from mypyc.build import mypycify
from setuptools import Distribution

SOURCE: Final = Path("router/src/hlserve_router")
TARGET: Final = Path("build/compiled")
MODULES: Final = (
    "accounting", "admission", "advice", "affinity", "answer_head", "answer_usage", "body", "body_spans", "body_turns", "checks",
    "classify", "deadlines", "dispatch", "endpoint", "errors", "estimate", "exchange", "head", "ids", "intake", "keys", "limit_account",
    "limit_window", "limits", "meters", "metrics", "models", "outcome", "placement", "plans", "policy",
    "pools", "proxy", "receiver", "relay", "reply", "retries", "sessions", "splice_connection", "splice_request", "sse", "state", "stored",
    "upstream",
)  # fmt: skip
"""What runs for every request or chunk. Not `splice`: a subclass of uvicorn's protocol cannot be compiled, so it only hands on. And no
module with a struct that msgspec decodes: it could not read the types of a compiled class's fields."""
_TYPED: Final = re.compile(r"Decoder\(\w|array_like")


def main() -> None:
    """Writes the compiled copy anew."""
    for name in MODULES:
        if _TYPED.search((SOURCE / f"{name}.py").read_text()):
            sys.exit(
                f"{name}.py decodes into a struct of its own: move that out, or take the module off the list in {__file__}."
            )
    shutil.rmtree(TARGET, ignore_errors=True)
    package = TARGET / SOURCE.name
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    sources = [str(package / f"{name}.py") for name in MODULES]
    options = ["--config-file", "pyproject.toml", "--follow-imports", "silent"]
    extensions = mypycify([*options, *sources], opt_level="2", target_dir=str(TARGET / "c"))
    distribution = Distribution({"name": "hlserve-router-compiled", "ext_modules": extensions, "packages": []})
    build = distribution.get_command_obj("build_ext")
    build.build_lib, build.build_temp = str(TARGET), str(TARGET / "o")
    build.ensure_finalized()
    build.run()
    sys.stdout.write(f"compiled {len(sources)} modules: run with PYTHONPATH={TARGET}\n")


if __name__ == "__main__":
    main()
