"""Read ServingPools from manifest files. The API server's own checks are those of `hlserve validate`."""

from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError

from hlserve_api.v1alpha1 import GROUP, VERSION, ServingPool
from hlserve_operator.state import NotRenderableError

SUFFIXES = (".yaml", ".yml", ".json")


def read_pools(path: Path) -> tuple[ServingPool, ...]:
    """Every ServingPool in a file or a folder, by name; other kinds are passed over.

    Raises NotRenderableError, in one sentence, if there is none, one is malformed, or a name is there twice.
    """
    pools: dict[str, ServingPool] = {}
    for file, document in _documents(path):
        if not isinstance(document, dict):
            raise NotRenderableError(f"{file}: a document is no mapping. Write apiVersion, kind, metadata and spec.")
        if document.get("apiVersion") != f"{GROUP}/{VERSION}" or document.get("kind") != "ServingPool":
            continue
        try:
            pool = ServingPool.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise NotRenderableError(f"{file}: {field}: {first['msg']}. See: hlserve validate -f {path}.") from error
        if pool.name in pools:
            raise NotRenderableError(f"{file}: ServingPool {pool.name} is there twice. Remove one.")
        pools[pool.name] = pool
    if not pools:
        raise NotRenderableError(
            f"{path} holds no ServingPool of {GROUP}/{VERSION}. Give -f a folder or file with one."
        )
    return tuple(pools[name] for name in sorted(pools))


def _documents(path: Path) -> Iterator[tuple[Path, object]]:
    if not path.exists():
        raise NotRenderableError(f"{path} does not exist. Give -f a folder or file with manifests.")
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in SUFFIXES and f.is_file())
    for file in files:
        try:
            documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise NotRenderableError(f"{file} is no valid YAML: {' '.join(str(error).split())}.") from error
        for document in documents:
            if document is not None:
                yield file, document
