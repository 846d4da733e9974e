"""Read the fields of a JSON body that the simulator knows; a wrong type is one sentence, an unknown field is ignored."""

from collections.abc import Mapping, Sequence

import msgspec

from hlserve_sim.errors import ApiError


def _refuse(name: str, wanted: str) -> ApiError:
    return ApiError(f"{name}: must be {wanted}", kind="Bad Request", param=name)


def decode(body: bytes) -> "Fields":
    """The JSON object in `body`. Raises ApiError."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"The body is not valid JSON: {error}", kind="Bad Request") from error
    if not isinstance(value, dict):
        raise ApiError("The body must be a JSON object", kind="Bad Request")
    return Fields(value)


class Fields:
    """A JSON object with typed access. Getters raise ApiError (400)."""

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[str, object]) -> None:
        self.raw = raw

    def text(self, name: str) -> str | None:
        """A string, or None if absent or null."""
        value = self.raw.get(name)
        if value is None or isinstance(value, str):
            return value
        raise _refuse(name, "a string")

    def need_text(self, name: str) -> str:
        """A string that must be there and not be empty."""
        value = self.text(name)
        if not value:
            raise _refuse(name, "given as a string")
        return value

    def integer(self, name: str) -> int | None:
        """An integer, or None if absent or null."""
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse(name, "an integer")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean; `default` if absent or null."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _refuse(name, "true or false")
        return value

    def child(self, name: str) -> "Fields | None":
        """An object, or None if absent or null."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _refuse(name, "an object")
        return Fields(value)

    def items(self, name: str) -> Sequence[object]:
        """A list; empty if absent or null."""
        value = self.raw.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise _refuse(name, "a list")
        return value

    def children(self, name: str) -> list["Fields"]:
        """A list of objects; empty if absent or null."""
        children = []
        for value in self.items(name):
            if not isinstance(value, dict):
                raise _refuse(name, "a list of objects")
            children.append(Fields(value))
        return children

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings; empty if absent or null."""
        value = self.raw.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise _refuse(name, "a string or a list of strings")
