"""Which build runs: from source in tests, or compiled if `PYTHONPATH` names a compiled copy."""

import asyncio
import re
import sys

from hlserve_router import build


async def test_the_version_says_whether_it_is_compiled() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hlserve_router", "--version", stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await process.communicate()
    kind = "compiled" if build.compiled() else "from source"
    assert re.fullmatch(rf"hlserve-router \d+\.\d+\.\d+ \(Python 3\.\d+\.\d+, {kind}\)\n", shown.decode())
