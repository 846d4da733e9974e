"""The router's settings: command line first, then environment (`HLSERVE_ROUTER_*`), then these defaults.

Each field is a setting; its option, its variable and its line of the reference page are made from it.
"""

import re
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hlserve_api.routing import DEFAULT_KEYRING_SHARDS

VARIABLE_PREFIX: Final = "HLSERVE_ROUTER_"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ORIGIN: Final = re.compile(r"\*|https?://[^/\s?#*]+")


class Settings(BaseSettings):
    """One field per setting; read once at start."""

    model_config = SettingsConfigDict(env_prefix=VARIABLE_PREFIX, extra="ignore", frozen=True, allow_inf_nan=False)

    table: Path | None = Field(
        default=None, description="File of the routing table (JSON). Watched; the last good one stays in force."
    )
    keyrings: tuple[Path, ...] = Field(
        default=(),
        description="File of a keyring shard (JSON); repeat. Watched.",
        json_schema_extra={"flag": "--keyring"},
    )
    engine_credentials: Path | None = Field(
        default=None, description="File of the engines' keys and CAs, by pool (JSON). Watched."
    )
    kubernetes: bool = Field(
        default=False,
        description="Read table, keyrings, engine credentials and endpoints from the cluster that the router runs in.",
    )
    namespace: str | None = Field(
        default=None, description="Namespace of the release; unset: the one of the pod's service account."
    )
    kubernetes_server: str | None = Field(
        default=None, description="Address of the API server; unset: the one that a pod is told."
    )
    kubernetes_token_file: Path = Field(
        default=SERVICE_ACCOUNT / "token", description="Token for the API server; read again when it changes."
    )
    kubernetes_ca_file: Path = Field(
        default=SERVICE_ACCOUNT / "ca.crt", description="CA of the API server (PEM), for an https address."
    )
    keyring_shards: int = Field(
        default=DEFAULT_KEYRING_SHARDS, ge=1, le=64, description="Number of keyring Secrets of the release."
    )
    shards_wait_seconds: float = Field(
        default=10.0,
        ge=0,
        description="How long the first readiness waits for the very keyring shards that the table names, once there are some.",
    )
    relist_seconds: float = Field(
        default=60.0, gt=0, description="How often everything watched on the cluster is listed in full."
    )
    watch_silence_seconds: float = Field(
        default=90.0,
        gt=0,
        description="How long a watch may bring neither an event nor a bookmark before it is renewed.",
    )
    kubernetes_retry_max_seconds: float = Field(
        default=4.0, gt=0, description="Longest pause between two tries to reach the API server."
    )
    host: str = Field(
        default="127.0.0.1", description="Address of both ports; `::` and `0.0.0.0` bind every interface."
    )
    port: int = Field(default=8080, ge=0, le=65535, description="Port for clients; 0 = any free one.")
    admin_port: int = Field(
        default=0, ge=0, le=65535, description="Port for metrics, reports, pools and classes; 0 = any free one."
    )
    admin_token_file: Path | None = Field(
        default=None,
        description="File of the bearer token that guards the admin port but /metrics and health; unset: unguarded.",
    )
    tls_cert: Path | None = Field(
        default=None, description="Certificate chain for clients (PEM). Watched; unset: plain HTTP."
    )
    tls_key: Path | None = Field(default=None, description="Private key of `--tls-cert` (PEM). Watched.")
    cors_origins: tuple[str, ...] = Field(
        default=(),
        description="Origin whose web pages may call the router, like https://app.example; repeat. `*` is any; none by default.",
        json_schema_extra={"flag": "--cors-origin"},
    )
    face: Literal["splice", "asgi"] = Field(
        default="splice",
        description="How requests are relayed: `splice` between sockets; `asgi` as any ASGI server would, which costs more CPU.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share the port, its limits and its capacity.",
    )
    limits_store: str = Field(
        default="memory",
        description="Where clients' limits are kept: memory (this pod alone), valkey://HOST:PORT/DB for several pods, sqlite:PATH for one "
        "machine. Budgets need one of the last two.",
    )
    limits_store_password_file: Path | None = Field(
        default=None, description="File of the store's password; unset: as in its address, or none."
    )
    limits_store_timeout_seconds: float = Field(
        default=0.25, gt=0, description="Longest wait for the store's answer; then the router decides by itself."
    )
    limits_store_retry_seconds: float = Field(
        default=0.5, gt=0, description="How often a store that is away is tried again."
    )
    reload_seconds: float = Field(default=0.25, gt=0, description="How often the watched files are looked at.")
    probe_seconds: float = Field(default=1.0, gt=0, description="How often each engine is probed and scraped.")
    tick_seconds: float = Field(default=0.1, gt=0, description="How often deadlines of requests are checked.")
    body_max_bytes: int = Field(default=64 * 1024 * 1024, gt=0, description="Largest request body.")
    header_max_bytes: int = Field(default=64 * 1024, gt=0, description="Largest sum of a request's header bytes.")
    header_max_count: int = Field(default=128, gt=0, description="Most headers of a request.")
    body_timeout_seconds: float = Field(default=60.0, gt=0, description="Longest time for a body to arrive.")
    header_timeout_seconds: float = Field(
        default=30.0, gt=0, description="Longest time for a request's head to arrive, from its first byte."
    )
    keep_alive_seconds: float = Field(
        default=75.0, gt=0, description="How long a client's connection may be idle between two requests."
    )
    linger_seconds: float = Field(
        default=5.0, gt=0, description="How long a refused client may go on sending before its connection is dropped."
    )
    connect_timeout_seconds: float = Field(default=2.0, gt=0, description="Longest time to connect to an engine.")
    abort_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        description="How long an engine may take to end what was aborted before it counts as a zombie.",
    )
    slow_start_seconds: float = Field(
        default=20.0, ge=0, description="Time over which an engine that joins a pool grows into its full share."
    )
    breaker_open_seconds: float = Field(
        default=10.0,
        gt=0,
        description="How long an engine is left out after failures in a row, at first; up to six times this.",
    )
    session_idle_seconds: float = Field(
        default=5.0,
        ge=0,
        description="A session of a HumanLess pool that is idle for so long gives its place in the KV cache up; 0: sessions are not "
        "held to the KV size.",
    )
    affinity_wait_seconds: float = Field(
        default=3.0,
        ge=0,
        description="Longest wait of an Agent request for the engine that has its prefix; Batch waits five times as long.",
    )
    drain_seconds: float = Field(default=600.0, ge=0, description="How long streams may go on after SIGTERM.")
    settle_seconds: float = Field(
        default=0.0, ge=0, description="Time from failing readiness to closing the port, for load balancers to notice."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="info logs one line a request."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_empty_value(cls, value: object) -> object:
        # An empty address would be every interface, an empty path the working folder.
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if each in ("", Path()):
                raise ValueError("it is empty: give a value, or leave it out")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _no_service_link(cls, value: object) -> object:
        if isinstance(value, str) and value.startswith("tcp://"):
            raise ValueError(
                f"{value[:64]} comes from a Service of the same name, not from you (Kubernetes' service links): set "
                "enableServiceLinks: false in the pod's spec, or set this variable in it"
            )
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin[:64]!r} is no origin: write it like https://app.example:8443, without a path"
                )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kubernetes == (self.table is not None):
            raise ValueError("Give either --table FILE or --kubernetes: one of them must tell the pools and classes")
        if self.kubernetes and (self.keyrings or self.engine_credentials):
            raise ValueError("--keyring and --engine-credentials belong to --table: with --kubernetes they are Secrets")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together: give both or neither")
        return self


def flag(name: str) -> str:
    """The option of the setting `name`."""
    extra = Settings.model_fields[name].json_schema_extra
    given = extra.get("flag") if isinstance(extra, dict) else None
    return str(given) if given is not None else "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of the setting `name`."""
    return VARIABLE_PREFIX + name.upper()
