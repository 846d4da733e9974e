"""Log probabilities in SGLang's shapes: the same for the same request, and never more than a whole."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionTokenLogprob

from hlserve_sim.lexicon import LEXICON
from hlserve_sim.logprobs import LEAST_LIKELY, MAX_TOP, MOST_LIKELY, ranked
from hlserve_sim.testing import MODEL, running

FAST = ("--time-scale", "20")


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=DefaultAsyncHttpxClient(verify=False)
    )


@pytest.mark.parametrize("top", [0, 3, 20])
async def test_a_chat_shows_each_token_with_its_alternatives(top: int) -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=8, logprobs=True, top_logprobs=top
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=8,
            logprobs=True,
            top_logprobs=top,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
    choice = whole.choices[0]
    assert choice.logprobs is not None
    shown = choice.logprobs.content
    assert shown is not None
    assert "".join(entry.token for entry in shown) == choice.message.content
    streamed: list[ChatCompletionTokenLogprob] = []
    for chunk in chunks:
        if (logged := chunk.choices[0].logprobs) is not None:
            (entry,) = logged.content or []
            assert entry.token == chunk.choices[0].delta.content
            streamed.append(entry)
    assert streamed == shown
    for entry in shown:
        assert entry.bytes == list(entry.token.encode())
        assert len(entry.top_logprobs) == top
        assert [(best.token, best.logprob) for best in entry.top_logprobs[:1]] == [(entry.token, entry.logprob)][:top]


async def test_tokens_that_the_parser_swallows_are_shown_too() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            reasoning_effort="high",
            max_tokens=10,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "stream_options": {"continuous_usage_stats": True}},
        )
        chunks = [chunk async for chunk in stream]
    logged = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
    assert [chunk.usage.completion_tokens for chunk in logged if chunk.usage] == list(range(1, 11))


async def test_a_chat_without_logprobs_shows_none_whatever_top_logprobs_says() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=2, extra_body={"top_logprobs": 3}
        )
    assert whole.choices[0].logprobs is None


@pytest.mark.parametrize("top", [0, 2])
async def test_completions_show_lists_over_tokens(top: int) -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.completions.create(model=MODEL, prompt="hi", max_tokens=6, logprobs=top, n=2)
        stream = await client.completions.create(model=MODEL, prompt="hi", max_tokens=6, logprobs=top, n=2, stream=True)
        chunks = [chunk async for chunk in stream]
    for choice in whole.choices:
        logged = choice.logprobs
        assert logged is not None
        assert "".join(logged.tokens or []) == choice.text
        assert logged.text_offset == [-1] * 6
        assert [len(entry) for entry in logged.top_logprobs or []] == [top] * 6 * (top > 0)
        own = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].index == choice.index]
        assert [value for part in own if part for value in part.token_logprobs or []] == logged.token_logprobs
        assert [value for part in own if part for value in part.top_logprobs or []] == logged.top_logprobs
    assert whole.choices[0].logprobs != whole.choices[1].logprobs


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.sampled_from(LEXICON), st.integers(0, MAX_TOP - 1))
def test_ranked_words_fall_and_stay_within_a_whole(digest: int, at: int, word: str, alternatives: int) -> None:
    words = ranked(digest, at, f" {word}", alternatives)
    assert words == ranked(digest, at, f" {word}", alternatives)
    assert len({text for text, _ in words}) == alternatives + 1
    chances = [exp(logprob) for _, logprob in words]
    assert LEAST_LIKELY <= chances[0] < MOST_LIKELY
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) <= 1 + 1e-9
    assert words[0][0] == f" {word}"
