"""The router's published API as an OpenAPI 3.1 document, built from the routes and answers that the code serves. Pure.

Relayed bodies belong to the engines: of them the document names the fields that the router reads, and allows any other.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from hlserve_api import headers as names
from hlserve_api.answers import (
    ANSWERS,
    ANTHROPIC_ERROR_TYPES,
    OPENAI_ERROR_TYPES,
    REASON_MEANINGS,
    RETRY_AFTER_MAX_SECONDS,
    RETRY_AFTER_MIN_SECONDS,
    Outcome,
    Reason,
)
from hlserve_router.state import ROUTES, Finish, Route

PATH: Final = "/openapi.json"
JsonObject = dict[str, Any]

_KEY_REASONS: Final = frozenset(
    (
        Reason.MISSING_KEY, Reason.INVALID_KEY, Reason.KEY_EXPIRED, Reason.KEY_NOT_YET_VALID, Reason.CONFLICTING_KEYS,
        Reason.KEY_SUSPENDED,
    )
)  # fmt: skip
_MODELS_REASONS: Final = _KEY_REASONS | {
    Reason.UNKNOWN_CLASS, Reason.CLASS_NOT_ALLOWED, Reason.CLASS_MISSING, Reason.MODEL_NOT_FOUND,
    Reason.HEADERS_TOO_LARGE, Reason.INTERNAL_ERROR,
}  # fmt: skip
_BODY_REASONS: Final = frozenset(
    (
        Reason.INVALID_JSON, Reason.MISSING_MODEL, Reason.DUPLICATE_FIELD, Reason.RESERVED_FIELD,
        Reason.MEDIA_NOT_ALLOWED, Reason.BODY_TIMEOUT, Reason.UNSUPPORTED_MEDIA_TYPE, Reason.BODY_TOO_LARGE,
        Reason.INPUT_TOO_LARGE,
    )
)  # fmt: skip
_OF_NO_OPERATION: Final = frozenset((Reason.UNKNOWN_PATH, Reason.METHOD_NOT_ALLOWED))
_RELAYED_REASONS: Final = frozenset(Reason) - _OF_NO_OPERATION
_ENGINES_OWN: Final = frozenset((400, 404, 413, 500))
"""Statuses that engines answer too; such an answer is passed on as it is."""

_SUMMARIES: Final = {
    "chat": "Chat completion (OpenAI).",
    "completions": "Text completion (OpenAI).",
    "embeddings": "Embeddings (OpenAI).",
    "responses": "Response (OpenAI).",
    "messages": "Message (Anthropic).",
    "count_tokens": "Number of a prompt's tokens (Anthropic).",
    "tokenize": "Token ids of a text (SGLang).",
    "generate": "Generation by SGLang's own API.",
}
_FIELDS: Final[Mapping[str, JsonObject]] = {
    "messages": {"type": "array", "description": "The conversation so far."},
    "prompt": {"description": "Text, token ids, or a list of either."},
    "input": {"description": "Text, or a list of items."},
    "text": {"description": "Text, or a list of texts."},
    "input_ids": {"description": "Token ids instead of text."},
}
_LIMIT: Final[JsonObject] = {"type": ["integer", "null"], "description": "Most tokens of the reply."}
_REF: Final = "#/components"


@cache
def document_json() -> bytes:
    """The whole document as it is served; made once, as a process may start many routers."""
    return json.dumps(document()).encode()


def document() -> JsonObject:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HlServe router",
            "version": version("hlserve-router"),
            "description": "One address for all models. The key decides the class of a request, and with it the pool of engines. "
            "A path with another method is answered with 405, any other path with 404.",
        },
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": {
            **{route.path: {"post": _relayed(route)} for route in ROUTES.values()},
            "/v1/responses/{response_id}": {"get": _stored("get_response", "A stored response.")},
            "/v1/responses/{response_id}/cancel": {"post": _stored("cancel_response", "Cancels a stored response.")},
            "/v1/models": _readable(
                "list_models", "The models that the key may use.", "Models", _MODELS_REASONS - {Reason.MODEL_NOT_FOUND}
            ),
            "/v1/models/{model}": {
                "parameters": [_path_parameter("model", "Name of a model; slashes may stand in it.")],
                **_readable("get_model", "One model.", "Model", _MODELS_REASONS),
            },
            "/healthz": _open("healthz", "The process is alive.", {"200": "It is."}),
            "/readyz": _open(
                "readyz", "Whether clients may be sent here.", {"200": "They may.", "503": "Documents are missing, or it ends."}
            ),
            PATH: _open("openapi", "This document.", {"200": "OpenAPI 3.1."}),
        },
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The client's key."},
                "apiKey": {"type": "apiKey", "in": "header", "name": names.API_KEY, "description": "The client's key."},
            },
            "parameters": _parameters(),
            "headers": _headers(),
            "responses": _responses(),
            "schemas": _schemas(),
        },
    }  # fmt: skip


def _relayed(route: Route) -> JsonObject:
    return {
        "operationId": route.name,
        "summary": _SUMMARIES[route.name],
        "parameters": [{"$ref": f"{_REF}/parameters/{name}"} for name in _parameters()],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _body(route)}}},
        "responses": {"200": _reply(route), **_errors(_RELAYED_REASONS), **_ENGINE_ANSWERS},
    }


def _body(route: Route) -> JsonObject:
    fields: JsonObject = {"model": {"type": "string", "description": "A model's name, see GET /v1/models."}}
    if route.generates:
        fields["stream"] = {"type": ["boolean", "null"], "description": "Answer with an event stream."}
    fields |= {name: _FIELDS[name] for name in route.prompt_fields}
    fields |= dict.fromkeys(route.output_limit_fields, _LIMIT)
    return {
        "type": "object",
        "properties": fields,
        "required": [] if route.model_optional else ["model"],
        "additionalProperties": True,
    }


def _reply(route: Route) -> JsonObject:
    content: JsonObject = {"application/json": {"schema": {"description": "The engine's reply."}}}
    if route.finish is not Finish.NONE:
        content["text/event-stream"] = {"schema": {"description": "The engine's events."}}
    return {
        "description": "The engine's reply, byte for byte.",
        "headers": _answer_headers(own=False),
        "content": content,
    }


def _stored(operation: str, summary: str) -> JsonObject:
    return {
        "operationId": operation,
        "summary": f"{summary} Only for the client that made it, and where the pool keeps responses.",
        "parameters": [_path_parameter("response_id", "Id of a response."), {"$ref": f"{_REF}/parameters/class"}],
        "responses": {
            "200": {
                "description": "The engine's reply.",
                "headers": _answer_headers(own=False),
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **_errors(_RELAYED_REASONS - _BODY_REASONS),
            **_ENGINE_ANSWERS,
        },
    }


def _readable(operation: str, summary: str, schema: str, reasons: Iterable[Reason]) -> JsonObject:
    described = {
        "summary": f"{summary} With an `anthropic-version` header in Anthropic's shape.",
        "parameters": [{"$ref": f"{_REF}/parameters/{name}"} for name in ("class", "request-id", "anthropic-version")],
    }
    responses = {
        "200": {
            "description": "From the router's own table; no engine is asked.",
            "headers": _identity_headers(),
            "content": {"application/json": {"schema": {"$ref": f"{_REF}/schemas/{schema}"}}},
        },
        **_errors(reasons),
    }
    without_body = {status: {"description": "As GET, without the body."} for status in responses}
    return {
        "get": {"operationId": operation, **described, "responses": responses},
        "head": {"operationId": f"{operation}_head", **described, "responses": without_body},
    }


def _open(operation: str, summary: str, statuses: Mapping[str, str]) -> JsonObject:
    """A route that needs no key."""
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "get": {
            "operationId": operation,
            "summary": summary,
            "security": [],
            "responses": {status: {"description": text, "content": content} for status, text in statuses.items()},
        },
        "head": {
            "operationId": f"{operation}_head",
            "summary": summary,
            "security": [],
            "responses": {status: {"description": text} for status, text in statuses.items()},
        },
    }


def _errors(reasons: Iterable[Reason]) -> JsonObject:
    """The router's own answers for these reasons, by status. Each tells all reasons of its status."""
    statuses = sorted({ANSWERS[reason].status for reason in reasons})
    return {str(status): {"$ref": f"{_REF}/responses/{status}"} for status in statuses}


def _responses() -> JsonObject:
    by_status: dict[int, list[Reason]] = {}
    for reason in Reason:
        if reason not in _OF_NO_OPERATION:
            by_status.setdefault(ANSWERS[reason].status, []).append(reason)
    return {str(status): _error(status, by_status[status]) for status in sorted(by_status)}


def _error(status: int, reasons: list[Reason]) -> JsonObject:
    shapes = [_openai_error(status, reasons), _anthropic_error(status, reasons)]
    if status in _ENGINES_OWN:
        shapes.append({"type": "object", "description": "The engine's own answer: it has no `x-hlserve-reason`."})
    meanings = "".join(f"\n- `{reason}`: {REASON_MEANINGS[reason]}" for reason in reasons)
    return {
        "description": f"One of:\n{meanings}",
        "headers": _answer_headers(own=True, retry=any(ANSWERS[reason].retry_after for reason in reasons)),
        "content": {"application/json": {"schema": {"anyOf": shapes}}},
    }


def _openai_error(status: int, reasons: list[Reason]) -> JsonObject:
    error = {
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "What to do."},
            "type": {"const": OPENAI_ERROR_TYPES[status]},
            "param": {"type": ["string", "null"], "description": "The field or header at fault."},
            "code": {"enum": [reason.value for reason in reasons]},
        },
        "required": ["message", "type", "param", "code"],
        "additionalProperties": False,
    }
    return {"type": "object", "properties": {"error": error}, "required": ["error"], "additionalProperties": False}


def _anthropic_error(status: int, reasons: list[Reason]) -> JsonObject:
    code = {"enum": [reason.value for reason in reasons]}
    error = {
        "type": "object",
        "properties": {
            "type": {"const": ANTHROPIC_ERROR_TYPES[status]},
            "message": {"type": "string", "description": "What to do."},
            "details": {"type": "object", "properties": {"error_code": code}, "required": ["error_code"]},
        },
        "required": ["type", "message", "details"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"type": {"const": "error"}, "error": error, "request_id": {"type": "string"}},
        "required": ["type", "error", "request_id"],
        "additionalProperties": False,
    }


_ENGINE_ANSWERS: Final[JsonObject] = {
    kind: {"description": f"{text}, passed on as it is.", "content": {"*/*": {"schema": {}}}}
    for kind, text in (("4XX", "The engine rejects the request"), ("5XX", "The engine fails"))
}


def _identity_headers() -> JsonObject:
    return {name: {"$ref": f"{_REF}/headers/{name}"} for name in (names.REQUEST_ID, names.REQUEST_ID_ANTHROPIC)}


def _answer_headers(*, own: bool, retry: bool = False) -> JsonObject:
    used = [names.OUTCOME, names.REASON, names.SHOULD_RETRY] if own else [names.CLASS, names.POOL]
    if retry:
        used.append(names.RETRY_AFTER)
    return {**_identity_headers(), **{name: {"$ref": f"{_REF}/headers/{name}"} for name in used}}


def _headers() -> JsonObject:
    text: JsonObject = {"type": "string"}
    seconds = {"type": "integer", "minimum": RETRY_AFTER_MIN_SECONDS, "maximum": RETRY_AFTER_MAX_SECONDS}
    about: Mapping[str, tuple[str, JsonObject]] = {
        names.REQUEST_ID: ("The request's id.", text),
        names.REQUEST_ID_ANTHROPIC: ("The same id, under Anthropic's name.", text),
        names.CLASS: ("The class that the request ran in.", text),
        names.POOL: ("The pool that served it.", text),
        names.OUTCOME: ("How it ended; the router itself answered.", {"enum": [outcome.value for outcome in Outcome]}),
        names.REASON: ("Why the router itself answered.", {"enum": [reason.value for reason in Reason]}),
        names.RETRY_AFTER: ("Seconds to wait before the next try.", seconds),
        names.SHOULD_RETRY: ("Present where a retry would only do harm.", {"const": "false"}),
    }
    return {name: {"description": described, "schema": schema} for name, (described, schema) in about.items()}


def _parameters() -> JsonObject:
    about = {
        "class": (names.CLASS, "Name of a WorkloadClass, to lower the request's class."),
        "session": (names.SESSION, "Requests of one session go to one replica, if it can take them."),
        "request-id": (names.REQUEST_ID, "Id to find the request by; another is made if it is malformed."),
        "anthropic-version": ("anthropic-version", "Errors and models come in Anthropic's shape."),
    }
    return {
        key: {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for key, (name, text) in about.items()
    }


def _path_parameter(name: str, text: str) -> JsonObject:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": text,
        "schema": {"type": "string", "minLength": 1},
    }


def _schemas() -> JsonObject:
    text: JsonObject = {"type": "string"}
    openai = _object(id=text, object={"const": "model"}, created={"type": "integer"}, owned_by=text, root=text)
    anthropic = _object(
        type={"const": "model"}, id=text, display_name=text, created_at={"type": "string", "format": "date-time"}
    )
    either = {"anyOf": [openai, anthropic]}
    optional: JsonObject = {"type": ["string", "null"]}
    return {
        "Model": either,
        "Models": {
            "anyOf": [
                _object(object={"const": "list"}, data={"type": "array", "items": openai}),
                _object(
                    data={"type": "array", "items": anthropic},
                    has_more={"const": False},
                    first_id=optional,
                    last_id=optional,
                ),
            ]
        },
    }


def _object(**properties: JsonObject) -> JsonObject:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip
