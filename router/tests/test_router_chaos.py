"""The chaos run: whatever fails, no client gets a wrong byte, every request has one outcome, and nothing is left behind."""

import os

import pytest

from hlserve_router.testing.chaos import ChaosRun, footprint, left_over
from hlserve_router.testing.stage import Stage

SEED = int(os.environ.get("HLSERVE_CHAOS_SEED", "4"))
REQUESTS = int(os.environ.get("HLSERVE_CHAOS_REQUESTS", "120"))
"""In each half of the run."""
SPARE = 8
"""Connections of probes, which come and go, and their tasks in the engines."""
BLOCKS_PER_REQUEST = 5
"""What the second half may leave allocated for each request: for a minute a router remembers the ids that it aborted at engines."""
FIRST_TIME_BLOCKS = 600
"""And what comes only once, such as a metric's series for an outcome that the first half did not see."""


@pytest.mark.timeout(120)
async def test_chaos_leaves_nothing_behind(stage: Stage) -> None:
    """Two halves alike: what the first one leaves is what has to be there, what the second one adds is a leak."""
    run = ChaosRun(SEED, stage)
    router = await run.start()
    try:
        await run.storm(router, REQUESTS)
        between = await footprint()
        await run.storm(router, REQUESTS)
        after = await footprint()
        problems = run.verdict(router)
    finally:
        run.stop()
    told = f"HLSERVE_CHAOS_SEED={SEED}: {run.told()}"
    assert not problems, "\n".join([told, f"{len(problems)} problems", *problems[:20]])
    assert not left_over(router), told
    assert after.tasks <= between.tasks + SPARE, (told, between, after)
    assert after.sockets <= between.sockets + 2 * SPARE, (told, between, after)
    assert after.blocks - between.blocks < BLOCKS_PER_REQUEST * REQUESTS + FIRST_TIME_BLOCKS, (told, between, after)
    assert run.fates["complete"] > REQUESTS / 2, told
