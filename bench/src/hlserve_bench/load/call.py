"""One streamed chat completion through the SDK, observed."""

from collections.abc import Mapping, Sequence

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from hlserve_api import headers
from hlserve_bench.load.observation import Observation, RunClock
from hlserve_bench.records import Ended

READ_TIMEOUT_SECONDS = 600.0
"""The SDK's default: what a client of the product has."""


def make_client(base_url: str, key: str) -> openai.AsyncOpenAI:
    """A client that never retries by itself: a retry would hide a refusal and its wait."""
    return openai.AsyncOpenAI(
        base_url=base_url,
        api_key=key,
        max_retries=0,
        timeout=openai.Timeout(READ_TIMEOUT_SECONDS, connect=10.0),
    )


def prompt_text(tokens: Sequence[int]) -> str:
    """Token ids as words: one whitespace-separated word is one token."""
    return " ".join(map("t{}".format, tokens))


async def stream_chat(
    client: openai.AsyncOpenAI,
    model: str,
    tokens: Sequence[int],
    seen: Observation,
    clock: RunClock,
    session: str | None = None,
) -> None:
    """Send the request and read its stream to the end; the result is in `seen`, errors included."""
    seen.sent_seconds = clock.now()
    try:
        await _stream(client, model, prompt_text(tokens), seen, clock, {headers.SESSION: session} if session else {})
    except openai.APIStatusError as error:
        _note_headers(seen, error.response.headers)
        seen.status = error.status_code
        seen.reason = seen.reason or error.code
        seen.retry_after_seconds = _retry_after(error.response.headers)
        _fail(seen, str(error.message), clock)
    except openai.APIError as error:
        # A stream that the router or the engine ended with an error event.
        seen.reason = seen.reason or error.code or type(error).__name__
        _fail(seen, f"{type(error).__name__}: {error}", clock)


async def _stream(
    client: openai.AsyncOpenAI,
    model: str,
    text: str,
    seen: Observation,
    clock: RunClock,
    extra_headers: Mapping[str, str],
) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=seen.wanted_tokens,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
        extra_headers=dict(extra_headers),
    )
    _note_headers(seen, raw.headers)
    seen.status = raw.status_code
    finished = False
    async with raw.parse() as stream:
        async for chunk in stream:
            if _has_token(chunk):
                seen.token_arrived(clock.now())
            if chunk.usage is not None:
                _note_usage(seen, chunk.usage)
            finished = finished or any(choice.finish_reason is not None for choice in chunk.choices)
    if finished and seen.output_tokens == seen.wanted_tokens:
        seen.finish(Ended.OK, clock.now())
    else:
        _fail(seen, f"{seen.output_tokens} of {seen.wanted_tokens} tokens arrived", clock)


def _has_token(chunk: ChatCompletionChunk) -> bool:
    return any(choice.delta.content for choice in chunk.choices)


def _note_usage(seen: Observation, usage: CompletionUsage) -> None:
    """The engine's own count of tokens: a chunk may carry several."""
    seen.output_tokens = usage.completion_tokens
    seen.input_tokens = usage.prompt_tokens
    if usage.prompt_tokens_details is not None:
        seen.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _note_headers(seen: Observation, received: Mapping[str, str]) -> None:
    seen.class_name = received.get(headers.CLASS)
    seen.pool = received.get(headers.POOL)
    seen.outcome = received.get(headers.OUTCOME)
    seen.reason = received.get(headers.REASON)


def _retry_after(received: Mapping[str, str]) -> float | None:
    try:
        return float(received[headers.RETRY_AFTER])
    except (KeyError, ValueError):
        return None


def _fail(seen: Observation, error: str, clock: RunClock) -> None:
    seen.error = error[:300]
    seen.finish(Ended.FAILED, clock.now())
