"""One arm in real time: the stack of its manifests, and the load process against it."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hlserve_bench.load.plan import LoadPlan, write_plan
from hlserve_bench.load.run import Progress
from hlserve_bench.records import RequestRecord, read_records
from hlserve_bench.report.assemble import Timing
from hlserve_bench.traces.workload import LoadSpec
from hlserve_local.demo_arms import DemoArm, arm_from_plan
from hlserve_local.demo_cell import AGENT_CLIENT, CHAT_CLIENT
from hlserve_local.planning import SimulationOptions
from hlserve_local.stack import Stack

_EXIT_SECONDS = 30.0
"""Beyond its own schedule, how long the load process may take to start, and to write what it saw."""
_KILL_SECONDS = 5.0


class LoadFailedError(RuntimeError):
    """The load process ended without records. The message quotes its last words."""


async def run_live(
    manifests: Path, load: LoadSpec, timing: Timing, seed: int, on_progress: Callable[[Progress], None]
) -> tuple[DemoArm, list[RequestRecord]]:
    """Start the stack, send the load, stop the stack. Raises what Stack raises, and LoadFailedError."""
    async with Stack(manifests, simulation=SimulationOptions(seed=seed)) as stack:
        arm = arm_from_plan(manifests.name, stack.plan)
        access = {item.client: item for item in stack.accesses}
        plan = LoadPlan(
            base_url=f"{stack.base_url}/v1",
            model=access[CHAT_CLIENT].model,
            chat_key=stack.keys[CHAT_CLIENT],
            agent_key=stack.keys[AGENT_CLIENT],
            seed=seed,
            spec=load,
            drain_seconds=timing.drain_seconds,
        )
        limit = timing.load_seconds + timing.drain_seconds + _EXIT_SECONDS
        records = await asyncio.wait_for(run_load_process(plan, on_progress), timeout=limit)
        return arm, records


async def run_load_process(plan: LoadPlan, on_progress: Callable[[Progress], None]) -> list[RequestRecord]:
    """The load in a process of its own, so that drawing and supervising here cannot delay it."""
    with TemporaryDirectory(prefix="hlserve-load-") as folder:
        plan_path, records_path = Path(folder) / "plan.json", Path(folder) / "records.jsonl"
        write_plan(plan_path, plan)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hlserve_bench.load", str(plan_path), str(records_path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            words = asyncio.create_task(_piped(process.stderr).read())
            async for line in _piped(process.stdout):
                on_progress(Progress(**json.loads(line)))
            complaint = (await words).decode(errors="replace").strip()
            status = await process.wait()
        finally:
            await _end(process)
        if status != 0 or not records_path.is_file():
            last = complaint.splitlines()[-1] if complaint else "it said nothing"
            raise LoadFailedError(f"The load process ended with status {status}: {last}")
        return read_records(records_path)


def _piped(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("the load process was started without a pipe")
    return stream


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _KILL_SECONDS)
    if process.returncode is None:
        process.kill()
        await process.wait()
