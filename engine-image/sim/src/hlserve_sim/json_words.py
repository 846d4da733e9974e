"""JSON documents that fit a schema, as words: arguments of tool calls and structured replies."""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from hlserve_sim.lexicon import LEXICON

FILLER_WORDS = 7
"""Words of a text when no length is forced."""
MAX_DEPTH = 8


class _Writer:
    """Writes one document. The first text takes all filler words, so that a length can be met; later ones take one."""

    def __init__(self, state: int, filler_words: int, root: Mapping[str, object]) -> None:
        # Apart from each other, so that a longer text changes nothing else of the document.
        self._rng, self._words_rng = Random(state), Random(~state)
        self._filler_words = filler_words
        self._root = root
        self.stretched = False

    def value(self, schema: Mapping[str, object], depth: int) -> object:
        """A value that fits `schema`; null beyond a depth that no sensible schema has."""
        schema = self._resolved(schema)
        options = schema.get("enum")
        if isinstance(options, list) and options:
            return options[self._rng.randrange(len(options))]
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((name for name in kind if name != "null"), "null")
        if kind is None and "properties" in schema:
            kind = "object"
        match kind if depth < MAX_DEPTH else "null":
            case "integer":
                return self._rng.randrange(100)
            case "number":
                return self._rng.randrange(100) / 4
            case "boolean":
                return self._rng.random() < 0.5
            case "null":
                return None
            case "array":
                least, item = schema.get("minItems"), schema.get("items")
                count = least if isinstance(least, int) else 0
                return [self.value(item if isinstance(item, dict) else {}, depth + 1) for _ in range(count)]
            case "object":
                return self._object(schema, depth)
            case _:
                words = 1 if self.stretched else self._filler_words
                self.stretched = True
                return " ".join(self._words_rng.choices(LEXICON, k=words))

    def _object(self, schema: Mapping[str, object], depth: int) -> dict[str, object]:
        properties, required = schema.get("properties"), schema.get("required")
        named = properties if isinstance(properties, dict) else {}
        wanted = [name for name in required if name in named] if isinstance(required, list) else []
        return {
            str(name): self.value(named[name] if isinstance(named[name], dict) else {}, depth + 1)
            for name in wanted or list(named)[:1]
        }

    def _resolved(self, schema: Mapping[str, object]) -> Mapping[str, object]:
        """The schema behind a local `$ref` or behind the first alternative."""
        for _ in range(MAX_DEPTH):
            reference, choices = schema.get("$ref"), schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            found: object = None
            if isinstance(reference, str) and reference.startswith("#/"):
                found = self._root
                for step in reference.removeprefix("#/").split("/"):
                    found = found.get(step) if isinstance(found, Mapping) else None
            elif isinstance(choices, list) and choices:
                found = choices[0]
            if not isinstance(found, Mapping):
                return schema
            schema = found
        return schema


def json_parts(schema: Mapping[str, object], rng: Random, length: int | None) -> Sequence[str]:
    """The words of a document that fits the object `schema`; `length` of them if that is given and a text can stretch."""
    schema = (
        schema if schema.get("type") or "properties" in schema or "$ref" in schema else {"type": "object", **schema}
    )
    state = rng.getrandbits(64)

    def words(filler: int) -> tuple[list[str], bool]:
        writer = _Writer(state, filler, schema)
        document = msgspec.json.encode(writer.value(schema, 0)).decode()
        return document.split(" "), writer.stretched

    parts, stretches = words(1 if length is not None else FILLER_WORDS)
    if length is None or not stretches or len(parts) >= length:
        return parts
    longer, _ = words(1 + length - len(parts))
    return longer
