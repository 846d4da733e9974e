import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hlserve_sim.testing import MODEL, running, spawned, until

ENDLESS: Mapping[str, object] = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 20_000, "ignore_eos": True}
ENDLESS_CHAT: Mapping[str, object] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 20_000,
    "ignore_eos": True,
}
LONG: Mapping[str, object] = {"prompt": list(range(60_000))}


async def gauge(http: httpx.AsyncClient, url: str, name: str) -> float:
    page = (await http.get(f"{url}/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    )


async def seconds_until(http: httpx.AsyncClient, url: str, name: str, value: float) -> float:
    async def reached() -> bool:
        return await gauge(http, url, name) == value

    return await until(reached)


async def until_ending(http: httpx.AsyncClient, url: str) -> None:
    async def ending() -> bool:
        return (await http.get(f"{url}/health")).status_code == 503

    await until(ending)


PLACES: list[tuple[str, tuple[str, ...], str, Mapping[str, object], bool]] = [
    ("mid-stream", (), "/v1/completions", {**ENDLESS, "stream": True}, True),
    ("mid-stream of a chat", (), "/v1/chat/completions", {**ENDLESS_CHAT, "stream": True}, True),
    (
        "in a silent prefill",
        ("--chunked-prefill-size", "128"),
        "/v1/completions",
        {**ENDLESS, **LONG, "stream": True},
        False,
    ),
    ("while nothing is streamed", (), "/v1/completions", ENDLESS, False),
]


@pytest.mark.parametrize(
    ("flags", "path", "body", "reads"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES]
)
async def test_a_client_that_goes_away_frees_the_slot_within_a_second(
    http: httpx.AsyncClient, flags: tuple[str, ...], path: str, body: Mapping[str, object], reads: bool
) -> None:
    async with running(*flags) as engine:
        reader, writer = await asyncio.open_connection(*engine.url.removeprefix("http://").split(":"))
        content = json.dumps({**body, "rid": "gone"}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        if reads:
            await reader.readuntil(b"data: ")
        await seconds_until(http, engine.url, "sglang:num_running_reqs", 1)
        writer.close()
        await seconds_until(http, engine.url, "sglang:num_running_reqs", 0)
        assert await gauge(http, engine.url, "sglang:num_used_tokens") == 0
        assert await gauge(http, engine.url, "sglang:num_aborted_requests_total") == 1


async def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(http: httpx.AsyncClient) -> None:
    async with (
        running("--max-running-requests", "1") as engine,
        http.stream("POST", engine.url + "/v1/completions", json={**ENDLESS, "stream": True}) as first,
    ):
        lines = first.aiter_lines()
        await anext(lines)
        with pytest.raises(httpx.ReadTimeout):
            await http.post(engine.url + "/v1/completions", json=ENDLESS, timeout=0.3)
        await seconds_until(http, engine.url, "sglang:num_queue_reqs", 0)
        assert await gauge(http, engine.url, "sglang:num_running_reqs") == 1


async def test_an_abort_ends_exactly_the_request_it_names(http: httpx.AsyncClient) -> None:
    async with (
        running() as engine,
        http.stream("POST", engine.url + "/v1/completions", json={**ENDLESS, "stream": True, "rid": "a"}) as one,
        http.stream("POST", engine.url + "/v1/completions", json={**ENDLESS, "stream": True, "rid": "ab"}) as other,
    ):
        lines = one.aiter_lines()
        await anext(lines)
        other_lines = other.aiter_lines()
        await anext(other_lines)
        assert (await http.post(engine.url + "/abort_request", json={"rid": "a"})).status_code == 200
        rest = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: {")]
        assert rest[-1]["choices"][0]["finish_reason"] == "abort"
        assert engine.server.driver.rids() == ("ab",)
        assert (await http.post(engine.url + "/abort_request", json={"rid": "unknown"})).status_code == 200
        refused = await http.post(engine.url + "/abort_request", json={"rid": ""})
        assert refused.status_code == 400
        assert (await http.post(engine.url + "/abort_request", json={"abort_all": True})).status_code == 200
        await seconds_until(http, engine.url, "sglang:num_running_reqs", 0)


async def test_the_rid_of_headers_names_chats_and_the_bodys_rid_the_others(http: httpx.AsyncClient) -> None:
    override = {"x-override-rid": "from-header", "x-override-priority": "7"}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    async with running("--time-scale", "20", "--enable-priority-scheduling") as engine:
        named = await http.post(engine.url + "/v1/chat/completions", json={**chat, "rid": "body"}, headers=override)
        bodied = await http.post(
            engine.url + "/v1/completions", json={"model": MODEL, "prompt": "x", "rid": "body"}, headers=override
        )
        native = await http.post(engine.url + "/generate", json={"text": "x"}, headers=override)
        made = await http.post(
            engine.url + "/v1/responses", json={"model": MODEL, "input": "x", "request_id": "resp_mine"}
        )
        message = await http.post(engine.url + "/v1/messages", json=chat, headers={"x-override-rid": "message"})
        bad = await http.post(engine.url + "/v1/chat/completions", json=chat, headers={"x-override-priority": "high"})
        records = [record.rid for record in engine.server.records]
        page = (await http.get(engine.url + "/metrics")).text
    assert named.json()["id"] == "from-header"
    assert bodied.json()["id"] == "body"
    assert native.json()["meta_info"]["id"] == "from-header"
    assert made.json()["id"] == "resp_mine"
    assert message.status_code == 200
    assert records == ["from-header", "body", "from-header", "resp_mine", "message"]
    assert bad.status_code == 400
    assert 'priority="7"' in page


async def test_draining_turns_readiness_off_while_running_work_goes_on(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        assert (await http.get(engine.url + "/hlserve/ready")).status_code == 200
        async with http.stream("POST", engine.url + "/v1/completions", json={**ENDLESS, "stream": True}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            answer = await http.post(engine.url + "/hlserve/drain", json={"drain": True})
            assert answer.json() == {"draining": True, "running": 1, "queued": 0}
            assert (await http.get(engine.url + "/hlserve/ready")).status_code == 503
            assert (await http.get(engine.url + "/health")).status_code == 200
            assert await gauge(http, engine.url, "hlserve_engine_draining") == 1
            await anext(lines)
        answer = await http.post(engine.url + "/hlserve/drain", json={"drain": False})
        assert answer.json()["draining"] is False
        assert (await http.get(engine.url + "/hlserve/ready")).status_code == 200
        assert (await http.post(engine.url + "/hlserve/drain", json={})).status_code == 400


async def test_on_sigterm_new_work_is_refused_running_work_finishes_and_the_exit_is_clean(
    http: httpx.AsyncClient,
) -> None:
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 150, "ignore_eos": True, "stream": True}
    async with spawned() as engine:
        async with http.stream("POST", engine.url + "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            engine.terminate()
            await until_ending(http, engine.url)
            refused = await http.post(engine.url + "/v1/completions", json=body)
            rest = [line async for line in lines if line.startswith("data: ")]
        async with asyncio.timeout(5):
            assert await engine.process.wait() == 0
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert len(rest) == 150
    assert rest[-1] == "data: [DONE]"


async def test_the_final_state_is_written_when_the_process_ends(http: httpx.AsyncClient, tmp_path: Path) -> None:
    kept = tmp_path / "state.json"
    async with spawned("--state-file", str(kept), "--time-scale", "20") as engine:
        await http.post(
            engine.url + "/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 3, "rid": "one"}
        )
        engine.terminate()
        assert await engine.process.wait() == 0
    state = json.loads(kept.read_text())
    assert [(record["rid"], record["output_tokens"]) for record in state["requests"]] == [("one", 3)]
    assert state["phase"] == "ending"


async def test_a_second_sigterm_ends_at_once(http: httpx.AsyncClient) -> None:
    async with (
        spawned() as engine,
        http.stream("POST", engine.url + "/v1/completions", json={**ENDLESS, "stream": True}) as stream,
    ):
        lines = stream.aiter_lines()
        await anext(lines)
        engine.terminate()
        await until_ending(http, engine.url)
        engine.terminate()
        async with asyncio.timeout(5):
            assert await engine.process.wait() == 0


async def test_a_port_in_use_ends_the_process_with_a_sentence() -> None:
    async with running() as engine:
        port = engine.url.rpartition(":")[2]
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                f"from hlserve_sim.__main__ import main; raise SystemExit(main(['--port', '{port}']))",
            ),
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in errors.decode()
    assert len(errors.decode().splitlines()) == 1
