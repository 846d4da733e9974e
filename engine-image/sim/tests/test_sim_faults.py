import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

import httpx
import pytest

from hlserve_sim.testing import MODEL, Running, running, until

STREAM: Mapping[str, object] = {
    "model": MODEL,
    "prompt": [1, 2, 3],
    "max_tokens": 10,
    "ignore_eos": True,
    "stream": True,
}
ENDLESS: Mapping[str, object] = {**STREAM, "max_tokens": 20_000}
PATH = "/v1/completions"


async def fault(http: httpx.AsyncClient, engine: Running, **fields: object) -> None:
    answer = await http.post(engine.url + "/sim/faults", json=fields)
    assert answer.status_code == 200, answer.text


async def read_until_broken(
    http: httpx.AsyncClient, engine: Running, error: type[Exception], timeout_seconds: float
) -> str:
    """What a client gets of an endless stream before it breaks with `error`."""
    received: list[str] = []

    async def read() -> None:
        async with http.stream("POST", engine.url + PATH, json=ENDLESS, timeout=timeout_seconds) as stream:
            async for text in stream.aiter_text():
                received.append(text)

    with pytest.raises(error):
        await read()
    return "".join(received)


def chunks(text: str) -> int:
    return sum(line.startswith("data: {") for line in text.splitlines())


async def test_delay_holds_the_request_back_before_the_engine_sees_it(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        await fault(http, engine, kind="delay", delay_ms=300)
        started = monotonic()
        await http.post(engine.url + PATH, json={**STREAM, "max_tokens": 1})
        assert monotonic() - started >= 0.3
        record = engine.server.records[-1]
        assert record.first_token_us is not None
        assert record.first_token_us - record.arrived_us < 300_000


async def test_a_slow_first_byte_comes_after_the_status(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        await fault(http, engine, kind="slow_first_byte", delay_ms=2000)
        started = monotonic()
        async with http.stream("POST", engine.url + PATH, json=STREAM) as stream:
            assert stream.status_code == 200
            assert monotonic() - started < 1.5
            lines = stream.aiter_lines()
            await anext(lines)
            assert monotonic() - started >= 2.0


async def test_error_first_is_200_and_an_error_event(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        await fault(http, engine, kind="error_first", status=422, message="no such luck")
        answer = await http.post(engine.url + PATH, json=STREAM)
        assert answer.status_code == 200
        error = json.loads(answer.text.split("\n\n")[0].removeprefix("data: "))["error"]
        assert (error["code"], error["message"]) == (422, "no such luck")
        assert engine.server.driver.totals.requests == 0


async def test_a_status_comes_with_its_retry_after(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "20") as engine:
        await fault(http, engine, kind="status", status=429, retry_after_seconds=7, count=1)
        answer = await http.post(engine.url + PATH, json=STREAM)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert (await http.post(engine.url + PATH, json=STREAM)).status_code == 200


@pytest.mark.parametrize("kind", ["reset", "cut"])
async def test_a_broken_connection_gives_the_chunks_before_it_and_frees_the_slot(
    http: httpx.AsyncClient, kind: str
) -> None:
    async with running() as engine:
        await fault(http, engine, kind=kind, after_chunks=3)
        received = await read_until_broken(http, engine, httpx.TransportError, 5.0)
        assert chunks(received) == 3 if kind == "cut" else chunks(received) <= 3

        async def freed() -> bool:
            return engine.server.driver.gauges().running == 0

        await until(freed)


async def test_a_reset_before_the_first_chunk_gives_no_answer_at_all(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        await fault(http, engine, kind="reset", count=1)
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await http.post(engine.url + PATH, json=STREAM)


@pytest.mark.parametrize("kind", ["reset", "cut", "truncate"])
async def test_an_answer_that_is_not_streamed_breaks_too(http: httpx.AsyncClient, kind: str) -> None:
    async with running() as engine:
        await fault(http, engine, kind=kind, after_chunks=2)
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await http.post(engine.url + PATH, json={**STREAM, "stream": False})


async def test_a_truncated_stream_ends_cleanly_without_its_end(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "5") as engine:
        await fault(http, engine, kind="truncate", after_chunks=4)
        answer = await http.post(engine.url + PATH, json=STREAM)
        assert chunks(answer.text) == 4
        assert "[DONE]" not in answer.text
        assert '"finish_reason":"' not in answer.text


async def test_a_hanging_stream_goes_silent_until_the_client_leaves(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "5") as engine:
        await fault(http, engine, kind="hang", after_chunks=2)
        async with http.stream("POST", engine.url + PATH, json=ENDLESS, timeout=30) as stream:
            text = stream.aiter_text()
            received = ""
            while chunks(received) < 2:
                received += await anext(text)
            silence = asyncio.ensure_future(anext(text))
            assert not (await asyncio.wait({silence}, timeout=0.5))[0], "nothing more comes, and no end"
            silence.cancel()
            with suppress(asyncio.CancelledError):
                await silence

        async def freed() -> bool:
            return engine.server.driver.gauges().running == 0

        await until(freed)


async def test_an_ignored_abort_leaves_the_slot_taken(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        await fault(http, engine, kind="ignore_abort")
        async with http.stream("POST", engine.url + PATH, json={**ENDLESS, "rid": "zombie"}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            assert (await http.post(engine.url + "/abort_request", json={"rid": "zombie"})).status_code == 200
        live = engine.server.driver.find("zombie")
        assert live is not None
        await live.lost()
        made = live.made
        await http.delete(engine.url + "/sim/faults")

        async def works_on() -> bool:
            return live.made > made

        await until(works_on)
        assert engine.server.driver.gauges().running == 1
        await http.post(engine.url + "/abort_request", json={"rid": "zombie"})
        await until(lambda: _gone(engine))


async def _gone(engine: Running) -> bool:
    return engine.server.driver.gauges().running == 0


async def test_a_prefix_abort_ends_others_too_as_upstream_does(http: httpx.AsyncClient) -> None:
    async with (
        running() as engine,
        http.stream("POST", engine.url + PATH, json={**ENDLESS, "rid": "a1"}) as one,
        http.stream("POST", engine.url + PATH, json={**ENDLESS, "rid": "a2"}) as other,
    ):
        for stream in (one, other):
            lines = stream.aiter_lines()
            await anext(lines)
        await fault(http, engine, kind="prefix_abort", count=1)
        await http.post(engine.url + "/abort_request", json={"rid": "a"})
        await until(lambda: _gone(engine))


async def test_stale_metrics_repeat_the_page_until_the_fault_is_over(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "20") as engine:
        await fault(http, engine, kind="stale_metrics", count=2)
        first = (await http.get(engine.url + "/metrics")).text
        await http.post(engine.url + PATH, json=STREAM)
        assert (await http.get(engine.url + "/metrics")).text == first
        assert (await http.get(engine.url + "/metrics")).text != first


async def test_a_fault_strikes_only_its_path_and_only_as_often_as_asked(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "20") as engine:
        await fault(http, engine, kind="status", status=500, count=2, path="/generate")
        codes = [
            (await http.post(engine.url + path, json={**STREAM, "text": "x"})).status_code
            for path in (PATH, "/generate", "/generate", "/generate")
        ]
        assert codes == [200, 500, 500, 200]
        assert (await http.get(engine.url + "/sim/faults")).json() == {"faults": []}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"kind": "gremlin"}, "kind: must be one of delay"),
        ({}, "kind: must be given"),
        ({"kind": "delay", "delay_ms": -1}, "delay_ms: must be from 0 to"),
        ({"kind": "status", "status": 200}, "status: must be from 400 to 599"),
        ({"kind": "reset", "count": 0}, "count: must be from 1 to"),
        ({"kind": "reset", "chunks": 3}, "chunks: a fault has only"),
    ],
    ids=[
        "an unknown kind",
        "no kind",
        "a negative delay",
        "a status that is no error",
        "no strikes",
        "a misspelt field",
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(
    http: httpx.AsyncClient, body: Mapping[str, object], sentence: str
) -> None:
    async with running() as engine:
        answer = await http.post(engine.url + "/sim/faults", json=body)
    assert answer.status_code == 400
    assert sentence in answer.json()["message"]
