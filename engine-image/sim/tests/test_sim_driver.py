"""The real-time loop over pure engines."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.types import Accepted, EngineGauges, EngineRequest, EngineTotals, FinishReason, Step
from hlserve_sim.clock import Clock
from hlserve_sim.driver import Driver, DuplicateRequestError
from hlserve_sim.engine_setup import resolve
from hlserve_sim.flags import parse
from hlserve_sim.live import Live
from hlserve_sim.replies import Kind, Piece, Reply
from hlserve_sim.testing import Arrival, replay

SETUP = resolve(parse(["--max-running-requests", "2", "--chunked-prefill-size", "256", "--enable-mixed-chunk"]))


@dataclass
class Seen:
    """An observer that remembers."""

    first: list[str] = field(default_factory=list)
    gaps_us: list[int] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    steps: int = 0

    def first_token(self, live: Live) -> None:
        self.first.append(live.rid)

    def next_token(self, live: Live, gap_us: int) -> None:
        self.gaps_us.append(gap_us)

    def stepped(self, duration_us: int) -> None:
        self.steps += 1

    def ended_one(self, live: Live) -> None:
        self.ended.append(live.rid)


def live(rid: str, prompt_tokens: int, reply_tokens: int) -> Live:
    pieces = tuple(Piece(Kind.CONTENT, " x") for _ in range(reply_tokens))
    reply = Reply(pieces, tuple(range(reply_tokens)), "length")
    return Live(
        rid=rid, prompt=[hash(rid) % 1000 + at for at in range(prompt_tokens)], reply=reply, priority=0, streamed=True
    )


def never(error: BaseException) -> None:
    raise AssertionError("the engine broke") from error


async def test_a_process_that_stalls_catches_up_without_drift_and_decides_as_if_it_had_not() -> None:
    seen = Seen()
    driver = Driver(Scheduler(SETUP.config, SETUP.cost), Clock(1.0), seen, never)
    lives = [live(f"r{number}", 300 + 100 * number, 20) for number in range(6)]
    for one in lives:
        driver.submit(one)
        await asyncio.sleep(0.02)
    time.sleep(0.25)  # noqa: ASYNC251 - the stall is what is tested
    await driver.idle()
    expected = replay(SETUP, [Arrival(one.arrived_us, one.engine_request()) for one in lives])
    assert {one.rid: one.finished_us for one in lives} == {rid: result.finished_us for rid, result in expected.items()}
    assert sorted(seen.ended) == [one.rid for one in lives]
    assert len(seen.gaps_us) == 6 * 19
    assert max(seen.gaps_us) < 250_000
    assert seen.steps == driver.totals.steps


async def test_a_request_that_arrives_during_a_stall_does_not_enter_the_past() -> None:
    driver = Driver(Scheduler(SETUP.config, SETUP.cost), Clock(1.0), Seen(), never)
    early, late = live("early", 400, 40), live("late", 400, 5)
    driver.submit(early)
    await early.changed(2)
    time.sleep(0.2)  # noqa: ASYNC251 - the stall is what is tested
    driver.submit(late)
    assert driver.gauges().queued == 1
    await driver.idle()
    assert late.first_token_us is not None
    assert late.first_token_us > late.arrived_us
    expected = replay(SETUP, [Arrival(one.arrived_us, one.engine_request()) for one in (early, late)])
    assert late.first_token_us - late.arrived_us == expected["late"].ttft_us


async def test_a_request_aborted_before_the_engine_saw_it_leaves_no_trace() -> None:
    seen = Seen()
    driver = Driver(Scheduler(SETUP.config, SETUP.cost), Clock(1.0), seen, never)
    early, late = live("early", 400, 10), live("late", 400, 5)
    driver.submit(early)
    await early.changed(0)
    time.sleep(0.1)  # noqa: ASYNC251 - the stall is what is tested
    driver.submit(late)
    assert driver.abort("late")
    assert not driver.abort("late")
    assert late.ended is FinishReason.ABORT
    await driver.idle()
    assert driver.totals.requests == 1
    assert seen.ended == ["late", "early"]


async def test_time_runs_faster_by_the_scale() -> None:
    driver = Driver(Scheduler(SETUP.config, SETUP.cost), Clock(50.0), Seen(), never)
    one = live("r", 400, 100)
    started = time.monotonic()
    driver.submit(one)
    await driver.idle()
    assert one.finished_us is not None
    assert one.finished_us - one.arrived_us > 1_000_000
    assert time.monotonic() - started < 0.5


async def test_an_id_in_use_is_refused() -> None:
    driver = Driver(Scheduler(SETUP.config, SETUP.cost), Clock(10.0), Seen(), never)
    driver.submit(live("same", 10, 5))
    with pytest.raises(DuplicateRequestError, match="same"):
        driver.submit(live("same", 10, 5))
    await driver.idle()


class _BrokenEngine:
    """An engine whose first step fails."""

    totals = EngineTotals()

    def submit(self, request: EngineRequest, now_us: int) -> Accepted:
        return Accepted()

    def abort(self, rid: str, now_us: int) -> bool:
        return False

    def begin_step(self, now_us: int) -> Step | None:
        raise RuntimeError("no KV left")

    def end_step(self, now_us: int) -> list[object]:
        return []

    def next_wakeup_us(self, now_us: int) -> int | None:
        return None

    def flush_cache(self) -> bool:
        return False

    def gauges(self) -> EngineGauges:
        return Scheduler(SETUP.config, SETUP.cost).gauges()


async def test_a_broken_engine_is_reported_and_not_swallowed() -> None:
    broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    driver = Driver(_BrokenEngine(), Clock(1.0), Seen(), broken.set_result)  # type: ignore[arg-type]
    driver.submit(live("r", 10, 5))
    assert str(await broken) == "no KV left"


async def test_everyone_who_waits_for_a_request_is_told() -> None:
    request = live("shared", 10, 10)
    waits = [
        asyncio.create_task(request.lost()),
        asyncio.create_task(request.changed(0)),
        asyncio.create_task(request.lost()),
    ]
    await asyncio.sleep(0)
    request.lose_client()
    await asyncio.wait_for(asyncio.gather(*waits), 5)
