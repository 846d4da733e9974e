"""One text per content: sorted keys, no spaces, no generation. Its hash is a document's generation."""

import hashlib
import json

from hlserve_api.routing import Document


def canonical_json(document: Document) -> str:
    """The document without its generation, the same text whenever the content is the same."""
    content = document.model_dump(mode="json", by_alias=True, exclude={"generation"})
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def generation_of(document: Document) -> str:
    """Lower-case hexadecimal SHA-256 of the document's canonical text."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def document_json(document: Document) -> str:
    """The document as it is stored: readable JSON with a newline at its end."""
    return document.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n"
