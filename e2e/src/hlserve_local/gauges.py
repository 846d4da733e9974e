"""Reading Prometheus text from engines and router."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """An engine's load, in SGLang's own metric names."""

    running: int
    queued: int
    tokens_per_second: float
    token_usage: float
    """Share of the KV pool in use, 0 to 1."""
    cache_hit_rate: float

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return self.running == 0 and self.queued == 0


def samples(text: str) -> Iterator[Sample]:
    """Every sample of an exposition. Raises ValueError if the text is none."""
    for family in text_string_to_metric_families(text):
        yield from family.samples


def parse_engine_gauges(text: str) -> EngineGauges:
    """The gauges in an engine's `/metrics`; those that are missing count as 0. Raises ValueError if the text is no exposition."""
    sums: dict[str, float] = {}
    for sample in samples(text):
        if sample.name.startswith("sglang:"):
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return EngineGauges(
        running=int(sums.get("sglang:num_running_reqs", 0)),
        queued=int(sums.get("sglang:num_queue_reqs", 0)),
        tokens_per_second=sums.get("sglang:gen_throughput", 0.0),
        token_usage=sums.get("sglang:token_usage", 0.0),
        cache_hit_rate=sums.get("sglang:cache_hit_rate", 0.0),
    )


async def read_text(client: httpx.AsyncClient, url: str) -> str | None:
    """A page's text; None: no answer, or not 200."""
    try:
        answer = await client.get(url)
    except httpx.HTTPError:
        return None
    return answer.text if answer.status_code == 200 else None


async def read_engine_gauges(client: httpx.AsyncClient, base_url: str) -> EngineGauges | None:
    """An engine's gauges; None: it does not answer, or not with metrics."""
    text = await read_text(client, f"{base_url}/metrics")
    if text is None:
        return None
    try:
        return parse_engine_gauges(text)
    except ValueError:
        return None
