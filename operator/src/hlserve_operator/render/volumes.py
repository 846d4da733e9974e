"""Volumes of an engine pod: model files, shared memory, certificates."""

from dataclasses import dataclass
from typing import Any

from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_model import CacheType
from hlserve_operator.state import NotRenderableError

MODELS_PATH = "/models"
TLS_PATH = "/etc/hlserve/tls"


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume and where the engine sees it."""

    volume: dict[str, Any]
    path: str
    read_only: bool = False

    @property
    def container_mount(self) -> dict[str, Any]:
        """The entry of the container's `volumeMounts`."""
        entry: dict[str, Any] = {"name": self.volume["name"], "mountPath": self.path}
        return {**entry, "readOnly": True} if self.read_only else entry


def mounts(pool: ServingPool) -> tuple[Mount, ...]:
    """All volumes of the pod in a fixed order. Raises NotRenderableError on a model source that cannot be mounted."""
    spec = pool.spec
    result = [*_model(pool), _shared_memory(spec.resources.shm_size_limit)]
    if spec.engine.tls is not None:
        secret = {"name": "tls", "secret": {"secretName": spec.engine.tls.secret_name}}
        result.append(Mount(secret, TLS_PATH, read_only=True))
    return tuple(result)


def model_path(pool: ServingPool) -> str:
    """What the engine is given as `--model-path`: a repository name, or where a mounted model lies."""
    scheme, _, rest = pool.spec.model.source.uri.partition("://")
    if scheme == "pvc":
        return f"{MODELS_PATH}/{rest.partition('/')[2]}".rstrip("/")
    return rest


def _model(pool: ServingPool) -> list[Mount]:
    source, cache = pool.spec.model.source.uri, pool.spec.model.cache
    scheme, _, rest = source.partition("://")
    match scheme:
        case "hf":
            return [_cache(pool)]
        case "pvc":
            claim = rest.partition("/")[0]
            volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            return [Mount(volume, MODELS_PATH, read_only=True)]
        case "file":
            if cache.type is not CacheType.HOST_PATH or cache.host_path is None:
                return []  # the files are part of the image
            volume = {"name": "models", "hostPath": {"path": cache.host_path, "type": "Directory"}}
            return [Mount(volume, cache.host_path, read_only=True)]
    raise NotRenderableError(
        f"ServingPool {pool.name}: model.source.uri {source!r} cannot be mounted. Use hf://, pvc:// or file://."
    )


def _cache(pool: ServingPool) -> Mount:
    cache = pool.spec.model.cache
    match cache.type:
        case CacheType.PERSISTENT_VOLUME_CLAIM:
            return Mount({"name": "models", "persistentVolumeClaim": {"claimName": cache.claim_name}}, MODELS_PATH)
        case CacheType.HOST_PATH:
            return Mount(
                {"name": "models", "hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}, MODELS_PATH
            )
        case CacheType.EMPTY_DIR:
            bound = {"sizeLimit": cache.size_limit} if cache.size_limit is not None else {}
            return Mount({"name": "models", "emptyDir": bound}, MODELS_PATH)


def _shared_memory(size_limit: str | None) -> Mount:
    bound: dict[str, Any] = {"medium": "Memory"}
    if size_limit is not None:
        bound["sizeLimit"] = size_limit
    return Mount({"name": "shm", "emptyDir": bound}, "/dev/shm")  # noqa: S108 - tensor parallel engines share memory here
