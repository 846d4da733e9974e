"""The names of models: which a key may use, which one a request means, and GET /v1/models in both shapes. Pure."""

from collections.abc import Mapping
from typing import Any

from hlserve_api.answers import Reason
from hlserve_api.routing import KeyEntry
from hlserve_router.errors import Refusal

_CREATED = 1_750_000_000
_CREATED_TEXT = "2025-06-15T15:06:40Z"
"""The API wants a time of creation; models here have none, so it is the same for all."""


def allowed_models(key: KeyEntry, models: Mapping[str, str]) -> Mapping[str, str]:
    """Those of `models` (name to the model it stands for) that the key may use."""
    if not key.models:
        return models
    return {name: model for name, model in models.items() if name in key.models or model in key.models}


def choose_model(models: Mapping[str, str], name: str | None) -> str:
    """The model that a request means; it may leave the name out if there is one only. Raises Refusal (400, 404)."""
    if name is not None:
        return find_model(models, name)[1]
    served = set(models.values())
    if not served:
        raise Refusal(Reason.MODEL_NOT_FOUND, "There is no model for this key: see GET /v1/models.", param="model")
    if len(served) > 1:
        raise Refusal(Reason.MISSING_MODEL, "Several models are served: name one in `model`.", param="model")
    return served.pop()


def describe_models(models: Mapping[str, str], *, anthropic: bool) -> dict[str, Any]:
    """The list of names that a key may use; `models` maps each to the model it stands for."""
    data = [describe_model(entry, anthropic=anthropic) for entry in models.items()]
    if not anthropic:
        return {"object": "list", "data": data}
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def describe_model(entry: tuple[str, str], *, anthropic: bool) -> dict[str, Any]:
    """One name."""
    name, model = entry
    if anthropic:
        return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED_TEXT}
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "hlserve", "root": model}


def find_model(models: Mapping[str, str], name: str) -> tuple[str, str]:
    """The entry of a name. Raises Refusal (404)."""
    if name not in models:
        raise Refusal(
            Reason.MODEL_NOT_FOUND,
            f"The model {name[:128]!r} is not there for this key: see GET /v1/models.",
            param="model",
        )
    return name, models[name]
