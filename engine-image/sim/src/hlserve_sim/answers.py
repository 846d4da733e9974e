"""Small helpers of the routes that are not generation."""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hlserve_sim import fields
from hlserve_sim.errors import ApiError, flat
from hlserve_sim.fields import Fields

Owner = TypeVar("Owner")
Rest = ParamSpec("Rest")
Method = Callable[Concatenate[Owner, Rest], Awaitable[Response]]


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def read_fields(request: Request) -> Fields:
    """The JSON object of a body; an empty body is an empty object. Raises ApiError."""
    body = await request.body()
    return fields.decode(body) if body.strip() else Fields({})


def errors_flat(method: Method[Owner, Rest]) -> Method[Owner, Rest]:
    """Answer an ApiError of a handler in the flat envelope."""

    @wraps(method)
    async def answered(owner: Owner, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Response:
        try:
            return await method(owner, *args, **kwargs)
        except ApiError as error:
            return json_answer(flat(error), error.status, error.headers)

    return answered
