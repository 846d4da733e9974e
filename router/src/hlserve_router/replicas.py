"""EndpointSlices to the replicas of a pool: one for each pod, however many addresses it has. Pure.

Conditions as Kubernetes means them: without a word a pod is ready and does not terminate. A pod that is listed twice is
ready only if both say so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hlserve_api.routing import Endpoint

PORT_NAMES: Final = ("http", "https")
"""The port of a Service that is used, if it has several; else its first."""
_FAMILIES: Final = ("IPv4", "IPv6", "FQDN")


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Reference(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Listed(msgspec.Struct, rename="camel"):
    addresses: list[str] = []
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)
    target_ref: _Reference | None = None


class _Port(msgspec.Struct):
    port: int | None = None
    name: str | None = None


class EndpointSlice(msgspec.Struct, rename="camel"):
    """What is read of one."""

    address_type: str = "IPv4"
    endpoints: list[_Listed] | None = None
    ports: list[_Port] | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod behind a Service. `authorities`: host and port, the usual family first."""

    id: str
    name: str
    authorities: tuple[str, ...]
    ready: bool
    terminating: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Replicas as endpoints of a pool, with the ids of those that get nothing new."""

    endpoints: tuple[Endpoint, ...]
    unready: frozenset[str]
    terminating: frozenset[str]


def replicas_of(slices: Iterable[EndpointSlice]) -> tuple[Replica, ...]:
    """Every replica that the slices of one Service list, by id."""
    found: dict[str, Replica] = {}
    for each in sorted(slices, key=lambda each: _rank(each.address_type)):
        port = _port(each.ports or [])
        if port is None:
            continue
        for listed in each.endpoints or []:
            if not listed.addresses:
                continue
            replica = _replica(listed, _authority(listed.addresses[0], port))
            other = found.get(replica.id)
            found[replica.id] = replica if other is None else _both(other, replica)
    return tuple(found[id_] for id_ in sorted(found))


def as_endpoints(replicas: Iterable[Replica], scheme: str, known: Mapping[str, str]) -> Found:
    """The replicas as a pool's endpoints. `known`: id -> URL of those that the pool has.

    A pod that was never ready is none yet. One that the pool knows stays, so that its streams and sessions do, and keeps
    the address under which it is known.
    """
    endpoints: list[Endpoint] = []
    unready: set[str] = set()
    terminating: set[str] = set()
    for replica in replicas:
        if replica.id not in known and (replica.terminating or not replica.ready):
            continue
        urls = [f"{scheme}://{authority}" for authority in replica.authorities]
        url = known.get(replica.id, "")
        endpoints.append(Endpoint(url=url if url in urls else urls[0], id=replica.id, name=replica.name))
        if replica.terminating:
            terminating.add(replica.id)
        elif not replica.ready:
            unready.add(replica.id)
    return Found(tuple(endpoints), frozenset(unready), frozenset(terminating))


def _rank(family: str) -> int:
    return _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES)


def _port(ports: list[_Port]) -> int | None:
    named = {port.name: port.port for port in reversed(ports) if port.port is not None}
    for name in PORT_NAMES:
        if name in named:
            return named[name]
    return next((port.port for port in ports if port.port is not None), None)


def _authority(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _replica(listed: _Listed, authority: str) -> Replica:
    conditions, pod = listed.conditions, listed.target_ref or _Reference()
    terminating = bool(conditions.terminating)
    ready = conditions.ready is not False and not terminating
    return Replica(pod.uid or authority, pod.name or authority, (authority,), ready, terminating)


def _both(one: Replica, other: Replica) -> Replica:
    authorities = (*one.authorities, *(each for each in other.authorities if each not in one.authorities))
    return Replica(one.id, one.name, authorities, one.ready and other.ready, one.terminating or other.terminating)
