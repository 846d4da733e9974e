"""Checks between client keys, classes, models and Secrets that no schema can see. Pure: objects in, problems out."""

from collections.abc import Iterator
from datetime import datetime

from hlserve_api.compile import KeyProblemReason, compile_keyrings
from hlserve_api.v1alpha1 import ClientKey
from hlserve_local.manifests import Kind
from hlserve_local.names import hint
from hlserve_local.objects import Objects, Placed
from hlserve_local.problems import Place, Problem, error, warning

BUDGET_SENTENCE = (
    "a budget needs a limits store that outlives the process (valkey://HOST:PORT or sqlite:PATH), and here limits are kept in memory: "
    "name one with --limits-store, or remove the budget."
)


def check_keys(objects: Objects, *, durable_store: bool, now: datetime) -> Iterator[Problem]:
    """Everything that can be wrong between ClientKeys, WorkloadClasses, models and Secrets."""
    if not objects.keys and not objects.any_broken(Kind.CLIENT_KEY):
        yield warning(
            Place(), "holds no ClientKey, so every request gets 401: add one (hlserve keys new NAME --class CLASS)."
        )
    for placed in objects.keys:
        yield from _check_class(objects, placed)
        yield from _check_models(objects, placed)
        if placed.value.spec.budget is not None and not durable_store:
            yield error(placed.place, BUDGET_SENTENCE, "spec.budget")
    yield from _check_credentials(objects, now)
    yield from _check_unused_secrets(objects)


def _check_class(objects: Objects, placed: Placed[ClientKey]) -> Iterator[Problem]:
    classes = {item.value.name: item.value for item in objects.classes}
    spec = placed.value.spec
    own_name = spec.workload_class_ref.name
    own = classes.get(own_name)
    if own is None and (Kind.WORKLOAD_CLASS, own_name) not in objects.broken:
        yield error(
            placed.place,
            f"no WorkloadClass is named {own_name}; {hint(own_name, classes, 'WorkloadClass')}",
            "spec.workloadClassRef.name",
        )
    for index, name in enumerate(spec.allowed_classes):
        path = f"spec.allowedClasses[{index}]"
        allowed = classes.get(name)
        if allowed is None and (Kind.WORKLOAD_CLASS, name) in objects.broken:
            continue
        if allowed is None:
            yield error(placed.place, f"no WorkloadClass is named {name}; {hint(name, classes, 'WorkloadClass')}", path)
        elif own is not None and name != own_name and allowed.spec.intent.rank <= own.spec.intent.rank:
            yield warning(
                placed.place,
                f"the header can only lower a request's class, and {name} ({allowed.spec.intent}) is not below {own_name} "
                f"({own.spec.intent}): requests that ask for it stay in {own_name}. Remove it, or make it the key's class.",
                path,
            )


def _check_models(objects: Objects, placed: Placed[ClientKey]) -> Iterator[Problem]:
    if objects.any_broken(Kind.SERVING_POOL):
        return
    served = {name for pool in objects.pools for name in (pool.value.spec.model.name, *pool.value.spec.model.aliases)}
    for index, model in enumerate(placed.value.spec.models):
        if model not in served:
            yield warning(
                placed.place,
                f"no pool serves the model {model}; {hint(model, served, 'model')}",
                f"spec.models[{index}]",
            )


def _check_credentials(objects: Objects, now: datetime) -> Iterator[Problem]:
    places = {placed.value.name: placed.place for placed in objects.keys}
    compiled = compile_keyrings([placed.value for placed in objects.keys], objects.secret_values, now=now)
    # A credential without secretRef gets its Secret from the operator, or from `hlserve up`.
    explained = {
        (placed.value.name, credential.id)
        for placed in objects.keys
        for credential in placed.value.spec.credentials
        if credential.secret_ref is None or (Kind.SECRET, credential.secret_ref.name) in objects.broken
    }
    for found in compiled.problems:
        if found.reason is KeyProblemReason.SECRET_MISSING and (found.client, found.credential) in explained:
            continue
        make = error if found.refused else warning
        yield make(places[found.client], f"{found.message}.", f"spec.credentials[{found.credential}]")


def _check_unused_secrets(objects: Objects) -> Iterator[Problem]:
    if objects.any_broken(Kind.SERVING_POOL, Kind.CLIENT_KEY):
        return
    used = {
        credential.secret(placed.value.name)[0]
        for placed in objects.keys
        for credential in placed.value.spec.credentials
    }
    for pool in objects.pools:
        used.update(_strings(pool.value.spec.model_dump(mode="json")))
    for name, place in objects.secret_places.items():
        if name not in used:
            yield warning(place, "nothing in this folder uses this Secret: refer to it from a ClientKey, or remove it.")


def _strings(value: object) -> Iterator[str]:
    """Every string in a nested structure: the names that a pool could refer to, wherever they stand."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
