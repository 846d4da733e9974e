"""`/v1/completions`."""

from collections.abc import Mapping

import msgspec

from hlserve_sim import wire
from hlserve_sim.apis.base import Api, Context, Stream, matched_stop, usage
from hlserve_sim.errors import ApiError, flat
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.orders import Order, Reader, limit, one_choice, request_id, schema_wanted, usage_wanted

DEFAULT_MAX_TOKENS = 16


class CompletionsApi(Api):
    """OpenAI text completions. `prompt` is a text or a list of token ids."""

    def read(self, fields: Fields, reader: Reader) -> Order:
        one_choice(fields)
        prompt, digest = reader.any_prompt(fields.raw.get("prompt"), "prompt")
        max_tokens = limit(fields.integer("max_tokens"), "max_tokens")
        include_usage, continuous = usage_wanted(fields, reader.default_include_usage)
        return Order(
            prompt=prompt,
            digest=digest,
            model=fields.need_text("model"),
            stream=fields.flag("stream"),
            rid=request_id(fields, "rid"),
            priority=fields.integer("priority"),
            max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            min_tokens=fields.integer("min_tokens") or 0,
            ignore_eos=fields.flag("ignore_eos"),
            stop=fields.strings("stop"),
            include_usage=include_usage,
            json_schema=schema_wanted(fields, "response_format"),
            continuous_usage=continuous,
        )

    def whole(self, order: Order, live: Live, created: int) -> object:
        choice = {
            "index": 0,
            "text": "".join(piece.text for piece in live.reply.pieces[: live.made]),
            "logprobs": None,
            "finish_reason": live.finish,
            "matched_stop": matched_stop(live),
        }
        return {
            "id": live.rid,
            "object": "text_completion",
            "created": created,
            "model": order.model,
            "choices": [choice],
            "usage": usage(live, self._context.cache_report),
        }

    def stream(self, order: Order, live: Live, created: int) -> Stream:
        return _CompletionStream(self._context, order, live, created)

    def error(self, error: ApiError) -> Mapping[str, object]:
        return flat(error)

    def error_stream(self, error: ApiError, model: str) -> bytes:
        return wire.sse({"error": flat(error)}) + wire.DONE


class _CompletionStream(Stream):
    def __init__(self, context: Context, order: Order, live: Live, created: int) -> None:
        self._cache_report, self._order, self._live, self._created = context.cache_report, order, live, created
        head = {"id": live.rid, "object": "text_completion", "created": created, "model": order.model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":[{"index":0,"text":'
        self._last = ""

    def tokens(self, start: int, stop: int) -> bytes:
        if self._live.done and stop == self._live.made and stop > start:
            stop -= 1  # the last token travels with the finish reason
            self._last = self._live.reply.pieces[stop].text
        head, encode, pieces = self._head, msgspec.json.encode, self._live.reply.pieces
        tail = b',"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}\n\n'
        if not self._order.continuous_usage:
            return b"".join([head + encode(pieces[at].text) + tail for at in range(start, stop)])
        parts = []
        for at in range(start, stop):
            counted = encode(running_usage(self._live, at + 1))
            parts.append(head + encode(pieces[at].text) + tail.replace(b'"usage":null', b'"usage":' + counted))
        return b"".join(parts)

    def closing(self) -> bytes:
        live = self._live
        end = {"logprobs": None, "finish_reason": live.finish, "matched_stop": matched_stop(live)}
        last = (
            self._head + msgspec.json.encode(self._last) + b"," + msgspec.json.encode(end)[1:] + b'],"usage":null}\n\n'
        )
        if self._order.include_usage:
            last += wire.sse(
                {
                    "id": live.rid,
                    "object": "text_completion",
                    "created": self._created,
                    "choices": [],
                    "model": self._order.model,
                    "usage": {
                        key: value for key, value in usage(live, self._cache_report).items() if value is not None
                    },
                }
            )
        return last + wire.DONE

    def failed(self, error: ApiError) -> bytes:
        return wire.sse({"error": flat(error)}) + wire.DONE


def running_usage(live: Live, made: int) -> dict[str, int]:
    """Usage in the midst of a stream."""
    return {"prompt_tokens": live.prompt_tokens, "total_tokens": live.prompt_tokens + made, "completion_tokens": made}
