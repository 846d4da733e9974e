"""What one replica may have in flight, kept beside the revision that was made with it: a new spec's caps are not an old replica's. Pure."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from hlserve_capacity.derive import DerivedPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Caps of one replica; None: no bound."""

    max_in_flight: int | None = None
    in_flight_tokens: int | None = None
    kv_tokens: int | None = None

    @classmethod
    def of(cls, derived: DerivedPool) -> Self:
        """The caps that were derived for a pool."""
        return cls(
            max_in_flight=derived.max_in_flight,
            in_flight_tokens=derived.in_flight_tokens,
            kv_tokens=derived.kv_tokens,
        )

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """The caps in an annotation; None if it is absent, or not what `text` writes."""
        try:
            document = json.loads(text or "null")
        except ValueError:
            return None
        if not isinstance(document, dict):
            return None
        values = {name: document.get(name) for name in cls.__dataclass_fields__}
        if any(value is not None and (type(value) is not int or value < 1) for value in values.values()):
            return None
        return cls(**values)

    @property
    def text(self) -> str:
        """As it is kept in an annotation."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
