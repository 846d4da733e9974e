"""`/generate`, SGLang's own API: streams repeat the whole text so far, as SGLang does unless told otherwise."""

from collections.abc import Mapping, Sequence

from hlserve_sim import wire
from hlserve_sim.apis.base import reasoning_tokens
from hlserve_sim.apis.choices import ChoicesApi, ChoiceStream
from hlserve_sim.errors import ApiError, native
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.orders import Order, Reader, choices_wanted, limit, request_id

DEFAULT_MAX_NEW_TOKENS = 128


class GenerateApi(ChoicesApi):
    """SGLang's native generation. `text` or `input_ids` or a list of either, limits and `n` in `sampling_params`."""

    holds_status = False
    header_overrides = True

    def read(self, fields: Fields, reader: Reader) -> Order:
        text, ids = fields.raw.get("text"), fields.raw.get("input_ids")
        if (text is None) == (ids is None):
            raise ApiError("Exactly one of text and input_ids must be given.")
        prompts, listed = reader.prompts(text if ids is None else ids, "text" if ids is None else "input_ids")
        prompt, digest = prompts[0]
        sampling = fields.child("sampling_params") or Fields({})
        max_tokens = limit(sampling.integer("max_new_tokens"), "max_new_tokens")
        return Order(
            prompt=prompt,
            digest=digest,
            model="",
            stream=fields.flag("stream"),
            rid=request_id(fields, "rid"),
            priority=fields.integer("priority"),
            max_tokens=DEFAULT_MAX_NEW_TOKENS if max_tokens is None else max_tokens,
            min_tokens=sampling.integer("min_new_tokens") or 0,
            ignore_eos=sampling.flag("ignore_eos"),
            stop=sampling.strings("stop"),
            choices=choices_wanted(sampling, len(prompts)),
            further=tuple(prompts[1:]),
            listed=listed,
        )

    def whole_of(self, order: Order, lives: Sequence[Live], created: int) -> object:
        results = [_result(live, live.made) for live in lives]
        return results if order.several else results[0]

    def choice_stream(self, order: Order, live: Live, created: int, index: int) -> ChoiceStream:
        return _GenerateStream(self, order, live, created, index)

    def trailer(self, order: Order, lives: Sequence[Live], created: int) -> bytes:
        return wire.DONE

    def error(self, error: ApiError) -> Mapping[str, object]:
        return native(error)

    def error_stream(self, error: ApiError, model: str) -> bytes:
        return _error_event(error) + wire.DONE


def _result(live: Live, made: int) -> dict[str, object]:
    done = live.done and made == live.made
    finish: dict[str, object] | None = None
    if done:
        finish = {"type": "stop" if live.finish == "tool_calls" else live.finish}
        if live.finish == "length":
            finish["length"] = made
        if live.finish == "stop" and live.reply.matched_stop is not None:
            finish["matched"] = live.reply.matched_stop
    return {
        "text": "".join(piece.text for piece in live.reply.pieces[:made]),
        "output_ids": live.reply.token_ids[:made],
        "meta_info": {
            "id": live.rid,
            "finish_reason": finish,
            "prompt_tokens": live.prompt_tokens,
            "weight_version": "default",
            "num_retractions": live.retractions,
            "reasoning_tokens": reasoning_tokens(live),
            "completion_tokens": made,
            "cached_tokens": live.cached_tokens,
        },
    }


def _error_event(error: ApiError) -> bytes:
    body = {"message": error.message, "type": "invalid_request_error", "code": error.status, "retryable": False}
    return wire.sse({"error": body})


class _GenerateStream(ChoiceStream):
    def __init__(self, api: ChoicesApi, order: Order, live: Live, created: int, index: int) -> None:
        super().__init__(api, order, live, created)
        self._index = {"index": index} if order.several else {}

    def tokens(self, start: int, stop: int) -> bytes:
        """One event for the lot: SGLang's tokenizer merges what has gathered, and the text is cumulative anyway."""
        if stop <= start or (self._live.done and stop == self._live.made):
            return b""  # the last token travels with the finish reason
        return wire.sse(_result(self._live, stop) | self._index)

    def ending(self) -> bytes:
        return wire.sse(_result(self._live, self._live.made) | self._index)

    def failed(self, error: ApiError) -> bytes:
        return _error_event(error) + wire.DONE
