"""The router's settings: command line first, then environment (`HLSERVE_ROUTER_*`), then these defaults."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """One field per setting; read once at start."""

    model_config = SettingsConfigDict(env_prefix="HLSERVE_ROUTER_", extra="ignore", frozen=True)

    table: Path = Field(description="File of the routing table (JSON). Watched; the last good one stays in force.")
    keyrings: tuple[Path, ...] = Field(default=(), description="Files of the keyring shards (JSON). Watched.")
    host: str = Field(
        default="127.0.0.1", description="Address of both ports; `::` and `0.0.0.0` bind every interface."
    )
    port: int = Field(default=8080, ge=0, le=65535, description="Port for clients; 0 = any free one.")
    admin_port: int = Field(
        default=0, ge=0, le=65535, description="Port for operator and monitoring; 0 = any free one."
    )
    admin_token_file: Path | None = Field(
        default=None, description="File of the bearer token that guards the admin port but /metrics; unset: unguarded."
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share the port; each enforces its part of every limit and capacity.",
    )
    reload_seconds: float = Field(default=0.25, gt=0, description="How often the watched files are looked at.")
    probe_seconds: float = Field(default=1.0, gt=0, description="How often each engine is probed and scraped.")
    tick_seconds: float = Field(default=0.1, gt=0, description="How often deadlines of requests are checked.")
    body_max_bytes: int = Field(default=64 * 1024 * 1024, gt=0, description="Largest request body.")
    header_max_bytes: int = Field(default=64 * 1024, gt=0, description="Largest sum of a request's header bytes.")
    body_timeout_seconds: float = Field(default=60.0, gt=0, description="Longest time for a body to arrive.")
    connect_timeout_seconds: float = Field(default=2.0, gt=0, description="Longest time to connect to an engine.")
    drain_seconds: float = Field(default=600.0, ge=0, description="How long streams may go on after SIGTERM.")
    settle_seconds: float = Field(
        default=0.0, ge=0, description="Time from failing readiness to closing the port, for load balancers to notice."
    )
    log_level: str = Field(default="info", description="debug, info, warning or error; info logs one line a request.")
