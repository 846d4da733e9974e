"""Runs a driver in its client's environment."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import hlserve_router
from hlserve_router.testing.clients.record import Call, DriverOutput, parse_output

ENVIRONMENTS = Path("build/clients")
"""Where `make test-clients` puts one virtual environment per client, from the top of the repository."""

_SETTINGS: Final = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""litellm would look for a newer price list on the internet."""


class ClientMissingError(RuntimeError):
    """The environment of a client is not there, in one sentence."""


async def run_driver(root: Path, client: str, driver: str, calls: Sequence[Call]) -> DriverOutput:
    """Runs `drive_<driver>` in the environment of `client`. Raises ClientMissingError, RuntimeError with its last words."""
    told = json.dumps([asdict(call) for call in calls]).encode()
    status, output, errors = await run(root, client, "python", "-m", f"{__package__}.drive_{driver}", told=told)
    if status != 0:
        raise RuntimeError(f"drive_{driver} in {client} ended with {status}: {errors[-3000:]}")
    return parse_output(output)


async def run(
    root: Path, client: str, program: str, *arguments: str, told: bytes = b"", timeout_seconds: float = 300, **more: str
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a program of the environment of `client`. `more`: environment variables."""
    folder = root / ENVIRONMENTS / client
    path = folder / "bin" / program
    if not path.exists():
        raise ClientMissingError(f"{ENVIRONMENTS / client} is not there: run `make test-clients`.")
    process = await asyncio.create_subprocess_exec(
        path, *arguments, cwd=folder,  # what a client leaves behind stays there
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        # A clean environment: no proxy, no key and no setting of this machine changes what a client does.
        env={
            "PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(Path(hlserve_router.__file__).parents[1]),
            "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder), **_SETTINGS, **more,
        },
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await process.communicate(told)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(), errors.decode()
