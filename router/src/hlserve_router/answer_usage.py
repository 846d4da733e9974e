"""The usage that a complete JSON answer reports. Pure."""

import msgspec

from hlserve_router.state import Usage
from hlserve_router.usage_fields import read_answer


def read_body_usage(body: bytes, usage: Usage) -> bool:
    """Takes the numbers of `body` into `usage`; leaves what is not there. False if it is no JSON, or has no usage at its top."""
    try:
        found = read_answer(body).usage
    except (msgspec.DecodeError, RecursionError):
        return False
    if found is None:
        return False
    prompt = found.prompt_tokens if found.prompt_tokens is not None else found.input_tokens
    completion = found.completion_tokens if found.completion_tokens is not None else found.output_tokens
    details = found.prompt_tokens_details or found.input_tokens_details
    cached = found.cache_read_input_tokens if details is None else details.cached_tokens
    if prompt is not None:
        usage.prompt_tokens = prompt
    if completion is not None:
        usage.completion_tokens = completion
    if cached is not None:
        usage.cached_tokens = cached
    return True
