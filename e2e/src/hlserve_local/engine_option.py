"""`--engine POOL=URL[,URL…]`: pools that are served by engines which somebody else started."""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from hlserve_local.names import hint


class EngineOptionError(ValueError):
    """An `--engine` value that cannot be used. The message says what to write."""


def parse_engine_options(values: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Pool name → base URLs, from values such as `chat=http://127.0.0.1:9001`. Raises EngineOptionError."""
    engines: dict[str, tuple[str, ...]] = {}
    for value in values:
        pool, equals, urls = value.partition("=")
        if not equals or not pool or not urls:
            raise EngineOptionError(
                f"--engine {value}: write POOL=URL, for example --engine chat=http://127.0.0.1:9001."
            )
        if pool in engines:
            raise EngineOptionError(
                f"--engine names the pool {pool} twice: give all its URLs at once, separated by commas."
            )
        engines[pool] = tuple(_base_url(value, url) for url in urls.split(","))
    return engines


def check_engine_pools(engines: Mapping[str, object], pools: Iterable[str]) -> None:
    """Raises EngineOptionError if an option names a pool that no manifest has."""
    known = sorted(pools)
    for pool in engines:
        if pool not in known:
            raise EngineOptionError(
                f"--engine names the pool {pool}, which no manifest has; {hint(pool, known, 'ServingPool')}"
            )


def _base_url(option: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as failure:
        raise EngineOptionError(f"--engine {option}: {url} is no URL ({failure}); write http://HOST:PORT.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EngineOptionError(
            f"--engine {option}: {url or 'an empty text'} is no URL of a server; write http://HOST:PORT."
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise EngineOptionError(
            f"--engine {option}: the URL holds more than a server's address; write http://HOST:PORT, without password or query."
        )
    path = parts.path.rstrip("/")
    if path == "/v1":
        raise EngineOptionError(f"--engine {option}: leave out /v1; the router adds the paths itself.")
    return f"{parts.scheme}://{parts.netloc}{path}"
