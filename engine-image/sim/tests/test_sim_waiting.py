"""What the engine tells an operator about its queue: metrics and server information."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hlserve_api import metrics as declared
from hlserve_sim.testing import MODEL, Running, running, until

Ask = tuple[int, int, int]
"""A first token id (prompts that differ in it share no prefix), prompt tokens, reply tokens."""


@asynccontextmanager
async def waiting(http: httpx.AsyncClient, engine: Running, runs: Ask, waits: Ask) -> AsyncIterator[None]:
    """One request that decodes and one that is in the engine's queue."""

    async def send(asked: Ask) -> None:
        first, prompt_tokens, output_tokens = asked
        prompt = list(range(first, first + prompt_tokens))
        body = {"model": MODEL, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True}
        await http.post(engine.url + "/v1/completions", json=body)

    async def decodes() -> bool:
        page = await samples(http, engine.url)
        return engine.server.driver.gauges().running == 1 and page["hlserve_engine_stage_info", ("decode",)] == 1

    async def queues() -> bool:
        """What has just arrived waits for no reason yet: the engine looks at it after the step that runs."""
        page = await samples(http, engine.url)
        name = "hlserve_engine_queue_reason_requests"
        return sum(value for (metric, label), value in page.items() if metric == name and label != ("none",)) == 1

    tasks = [asyncio.create_task(send(runs))]
    await until(decodes)
    tasks.append(asyncio.create_task(send(waits)))
    await until(queues)
    try:
        yield
    finally:
        engine.server.abort_all()
        await asyncio.gather(*tasks)


async def samples(http: httpx.AsyncClient, url: str) -> dict[tuple[str, tuple[str, ...]], float]:
    page = (await http.get(f"{url}/metrics")).text
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("hlserve_engine_")
    }


SMALL = ("--max-total-tokens", "10000")


@pytest.mark.parametrize(
    ("flags", "runs", "waits", "expected"),
    [
        (
            (*SMALL, "--max-running-requests", "1"),
            (0, 100, 9_000),
            (5_000, 10, 10),
            {"reason": "slots", "headroom": 0, "need": 1, "message": "queued: slots: headroom 0 requests, need 1"},
        ),
        (
            SMALL,
            (0, 100, 9_000),
            (5_000, 1_000, 10),
            {"reason": "kv", "headroom": 900, "need": 1_010, "message": "queued: kv: headroom 900 tokens, need 1010"},
        ),
        (
            (*SMALL, "--enable-throughput-mode"),
            (0, 100, 7_900),
            (5_000, 1_490, 10),
            {
                "reason": "admission",
                "headroom": 1_000,
                "need": 1_500,
                "message": "queued: admission: headroom 1000 tokens, need 1500",
            },
        ),
    ],
    ids=["no free slot", "too little KV", "a session outside the bound"],
)
async def test_the_queue_says_what_it_waits_for(
    http: httpx.AsyncClient, flags: tuple[str, ...], runs: Ask, waits: Ask, expected: Mapping[str, object]
) -> None:
    async with running(*flags) as engine, waiting(http, engine, runs, waits):
        found = await samples(http, engine.url)
        told = (await http.get(engine.url + "/server_info")).json()["hlserve"]
    assert told["queue"] == {"requests": 1, **expected}
    assert told["stage"] == "decode"
    (metric,) = (one for one in declared.ENGINE if one.name == "hlserve_engine_queue_reason_requests")
    reasons = {value: found[metric.name, (value,)] for value in metric.labels[0].values}
    assert reasons == {value: float(value == expected["reason"]) for value in metric.labels[0].values}


@pytest.mark.parametrize(
    ("flags", "bound_tokens"), [(SMALL, 10_000), ((*SMALL, "--enable-throughput-mode"), 9_000)], ids=["stock", "bound"]
)
async def test_admission_counts_the_whole_request(
    http: httpx.AsyncClient, flags: tuple[str, ...], bound_tokens: int
) -> None:
    async with running(*flags) as engine, waiting(http, engine, (0, 100, 7_900), (5_000, 2_500, 1)):
        found = await samples(http, engine.url)
        told = (await http.get(engine.url + "/server_info")).json()["hlserve"]
    assert told["kv_admission"] == {"tokens": 8_000, "bound_tokens": bound_tokens}
    assert found["hlserve_engine_kv_admission_tokens", ()] == 8_000


async def test_an_idle_engine_waits_for_nothing_and_has_all_declared_metrics_but_the_hooks(
    http: httpx.AsyncClient,
) -> None:
    async with running() as engine:
        found = await samples(http, engine.url)
        told = (await http.get(engine.url + "/server_info")).json()["hlserve"]
    stages = {labels[0]: value for (name, labels), value in found.items() if name == "hlserve_engine_stage_info"}
    assert stages == {"fill": 0, "mixed": 0, "decode": 0, "idle": 1}
    assert sum(value for (name, _), value in found.items() if name == "hlserve_engine_queue_reason_requests") == 0
    assert (told["queue"], told["stage"]) == (None, "idle")
    # A counter whose label has no value yet has no sample.
    missing = {metric.name for metric in declared.ENGINE} - {name for name, _ in found}
    assert missing == {"hlserve_engine_hooks_active", "hlserve_engine_aborts_total", "hlserve_engine_step_seconds"}
    assert ("hlserve_engine_step_seconds_count", ()) in found


async def test_mixed_and_fill_stages_are_told_apart(http: httpx.AsyncClient) -> None:
    flags = ("--chunked-prefill-size", "64", "--enable-mixed-chunk", "--max-running-requests", "4")
    seen: set[str] = set()

    async def look() -> bool:
        found = await samples(http, engine.url)
        seen.update(label[0] for (name, label), value in found.items() if name.endswith("stage_info") and value)
        return seen >= {"fill", "mixed", "decode"}

    async with running(*flags) as engine:
        bodies = [
            {"model": MODEL, "prompt": list(range(at, at + 4_000)), "max_tokens": 1_000, "ignore_eos": True}
            for at in (0, 10_000)
        ]
        tasks = [asyncio.create_task(http.post(engine.url + "/v1/completions", json=body)) for body in bodies]
        await until(look)
        engine.server.abort_all()
        await asyncio.gather(*tasks)
