"""The top-level fields of a request body that decide something, and the decoders that find them. Pure.

Raw values are slices of the body: what they hold is not looked at.
"""

from typing import Final

import msgspec

Raw = msgspec.Raw
ABSENT: Final = msgspec.Raw()
"""The value of a field that is not there."""


class ModelName(str):
    """The value of `model`. A type of its own, so that the decoder tells of each time that the key is there."""

    __slots__ = ()


NO_MODEL: Final = ModelName("")


class Top(msgspec.Struct, eq=False, gc=False):
    """Those fields, each as far as it has the right type."""

    model: ModelName = NO_MODEL
    stream: bool | None = None
    messages: Raw = ABSENT
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: Raw = ABSENT
    tools: Raw = ABSENT
    n: int | None = None
    prompt: Raw = ABSENT
    input: Raw = ABSENT
    text: Raw = ABSENT
    input_ids: Raw = ABSENT
    system: Raw = ABSENT
    instructions: Raw = ABSENT
    max_output_tokens: int | None = None
    sampling_params: Raw = ABSENT
    prompt_cache_key: str | None = None
    session_id: str | None = None
    metadata: Raw = ABSENT
    previous_response_id: str | None = None
    background: bool | None = None
    # These are reserved: a body that has one of them, with any value, is not decoded.
    rid: msgspec.UnsetType = msgspec.UNSET
    request_id: msgspec.UnsetType = msgspec.UNSET
    session_params: msgspec.UnsetType = msgspec.UNSET
    lora_path: msgspec.UnsetType = msgspec.UNSET
    custom_logit_processor: msgspec.UnsetType = msgspec.UNSET


class Turn(msgspec.Struct, eq=False, gc=False):
    """One message of a conversation."""

    role: str = ""


class UserId(msgspec.Struct, gc=False):
    """`metadata.user_id` of Anthropic's API, as newer agents write it: JSON in a string."""

    session_id: str = ""


_models: Final[list[ModelName]] = []
"""Those of the body that is being decoded: one more than one, and the body names two."""


def _seen(kind: type[ModelName], value: str) -> ModelName:
    if kind is not ModelName or type(value) is not str:
        raise TypeError("a model is named by a string")
    name = ModelName(value)
    _models.append(name)
    return name


_decode_top: Final = msgspec.json.Decoder(Top, dec_hook=_seen).decode


def read_top(body: bytes) -> Top | None:
    """The fields of a body; None if it names no model, or more than one.

    Raises DecodeError, also for a field of another type, RecursionError, UnicodeDecodeError.
    """
    _models.clear()
    top = _decode_top(body)
    return top if len(_models) == 1 and top.model else None


read_every_key: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
read_turn: Final = msgspec.json.Decoder(Turn).decode
read_user_id: Final = msgspec.json.Decoder(UserId).decode
read_any: Final = msgspec.json.Decoder().decode
