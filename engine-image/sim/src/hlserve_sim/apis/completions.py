"""`/v1/completions`."""

from collections.abc import Mapping, Sequence

import msgspec

from hlserve_sim import wire
from hlserve_sim.apis.base import matched_stop
from hlserve_sim.apis.choices import ChoicesApi, ChoiceStream, usage
from hlserve_sim.errors import ApiError, flat
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.logprobs import completion_logprobs, top_wanted
from hlserve_sim.orders import Order, Reader, choices_wanted, limit, request_id, schema_wanted, usage_wanted

DEFAULT_MAX_TOKENS = 16


class CompletionsApi(ChoicesApi):
    """OpenAI text completions. `prompt` is a text, a list of token ids, or a list of either."""

    def read(self, fields: Fields, reader: Reader) -> Order:
        prompts, _ = reader.prompts(fields.raw.get("prompt"), "prompt")
        prompt, digest = prompts[0]
        logprobs = fields.integer("logprobs")
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
            choices=choices_wanted(fields, len(prompts)),
            further=tuple(prompts[1:]),
            listed=len(prompts) > 1,
            top_logprobs=None if logprobs is None else top_wanted(logprobs, "logprobs"),
        )

    def whole_of(self, order: Order, lives: Sequence[Live], created: int) -> object:
        top = order.top_logprobs
        choices = [
            {
                "index": index,
                "text": "".join(piece.text for piece in live.reply.pieces[: live.made]),
                "logprobs": None if top is None else completion_logprobs(live, 0, live.made, top),
                "finish_reason": live.finish,
                "matched_stop": matched_stop(live),
            }
            for index, live in enumerate(lives)
        ]
        return {
            "id": lives[0].rid,
            "object": "text_completion",
            "created": created,
            "model": order.model,
            "choices": choices,
            "usage": usage(order, lives, self._context.cache_report),
        }

    def choice_stream(self, order: Order, live: Live, created: int, index: int) -> ChoiceStream:
        return _CompletionStream(self, order, live, created, index)

    def trailer(self, order: Order, lives: Sequence[Live], created: int) -> bytes:
        if not order.include_usage:
            return wire.DONE
        counted = usage(order, lives, self._context.cache_report)
        last = {
            "id": lives[0].rid,
            "object": "text_completion",
            "created": created,
            "choices": [],
            "model": order.model,
            "usage": {key: value for key, value in counted.items() if value is not None},
        }
        return wire.sse(last) + wire.DONE

    def error(self, error: ApiError) -> Mapping[str, object]:
        return flat(error)

    def error_stream(self, error: ApiError, model: str) -> bytes:
        return wire.sse({"error": flat(error)}) + wire.DONE


class _CompletionStream(ChoiceStream):
    def __init__(self, api: ChoicesApi, order: Order, live: Live, created: int, index: int) -> None:
        super().__init__(api, order, live, created)
        head = {"id": live.rid, "object": "text_completion", "created": created, "model": order.model}
        self._head = b'data: %b,"choices":[{"index":%d,"text":' % (msgspec.json.encode(head)[:-1], index)
        self._own_tails = order.continuous_usage or order.top_logprobs is not None
        self._held: int | None = None
        """The last token, whose text goes out with the finish reason."""

    def tokens(self, start: int, stop: int) -> bytes:
        if self._live.done and stop == self._live.made and stop > start:
            stop -= 1  # the last token travels with the finish reason
            self._held = stop
        if self._own_tails:
            return b"".join(map(self._own_event, range(start, stop)))
        head, encode, pieces = self._head, msgspec.json.encode, self._live.reply.pieces
        tail = b',"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}\n\n'
        return b"".join([head + encode(pieces[at].text) + tail for at in range(start, stop)])

    def _own_event(self, at: int) -> bytes:
        """The event of token `at` when each carries usage, log probabilities or both."""
        encode, text = msgspec.json.encode, self._live.reply.pieces[at].text
        counted = running_usage(self._live, at + 1) if self._order.continuous_usage else None
        tail = b',"logprobs":%b,"finish_reason":null,"matched_stop":null}],"usage":%b}\n\n'
        return self._head + encode(text) + tail % (encode(self._logged(at)), encode(counted))

    def _logged(self, at: int) -> dict[str, object] | None:
        top = self._order.top_logprobs
        return None if top is None else completion_logprobs(self._live, at, at + 1, top)

    def ending(self) -> bytes:
        live, held = self._live, self._held
        text = "" if held is None else live.reply.pieces[held].text
        end = {
            "logprobs": None if held is None else self._logged(held),
            "finish_reason": live.finish,
            "matched_stop": matched_stop(live),
        }
        return self._head + msgspec.json.encode(text) + b"," + msgspec.json.encode(end)[1:] + b'],"usage":null}\n\n'

    def failed(self, error: ApiError) -> bytes:
        return wire.sse({"error": flat(error)}) + wire.DONE


def running_usage(live: Live, made: int) -> dict[str, int]:
    """Usage in the midst of a stream."""
    return {"prompt_tokens": live.prompt_tokens, "total_tokens": live.prompt_tokens + made, "completion_tokens": made}
