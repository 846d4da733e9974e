"""The operator's settings: command line first, then environment (`HLSERVE_OPERATOR_*`), then these defaults.

Each field is a setting; its option and its variable are made from its name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import click
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hlserve_api.routing import DEFAULT_KEYRING_SHARDS
from hlserve_operator.errors import StartError

VARIABLE_PREFIX: Final = "HLSERVE_OPERATOR_"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Settings(BaseSettings):
    """One field per setting; read once at start."""

    model_config = SettingsConfigDict(env_prefix=VARIABLE_PREFIX, extra="ignore", frozen=True, allow_inf_nan=False)

    release: str = Field(
        default="hlserve", description="Name of the release that this operator and its routers belong to."
    )
    namespace: str | None = Field(
        default=None, description="Namespace of the release; unset: the one of the pod's service account."
    )
    engine_image: str | None = Field(default=None, description="Engine image of pools that name none.")
    monitoring_labels: Annotated[Mapping[str, str], NoDecode] = Field(
        default_factory=dict,
        description="Labels (k=v,k=v) of the namespace whose Prometheus may read engines' metrics; unset: none may.",
    )
    keyring_shards: int = Field(
        default=DEFAULT_KEYRING_SHARDS, ge=1, le=64, description="Number of keyring Secrets of the release."
    )
    budgets: bool = Field(
        default=False, description="The routers' store of limits outlives them, so that budgets of keys can hold."
    )
    prometheus_address: str | None = Field(
        default=None, description="Prometheus that KEDA reads scale signals from; unset: it asks the operator."
    )
    kubeconfig: Path | None = Field(
        default=None, description="Kubeconfig file; unset: the service account of the pod that this runs in."
    )
    context: str | None = Field(default=None, description="Context of the kubeconfig; unset: its current one.")
    host: str = Field(default="127.0.0.1", description="Address of the port; `::` and `0.0.0.0` bind every interface.")
    port: int = Field(
        default=8080, ge=0, le=65535, description="Port of /healthz, /readyz, /metrics and scale signals."
    )
    admin_token_file: Path | None = Field(
        default=None,
        description="File of the bearer token for routers' reports, engines' drain calls and scale signals; unset: none.",
    )
    router_admin_port: int = Field(default=9090, ge=1, le=65535, description="Port of the routers' /v1/report.")
    identity: str | None = Field(default=None, description="Name in the Lease; unset: the pod's name.")
    workers: int = Field(default=4, ge=1, le=64, description="Objects that are reconciled at the same time.")
    resync_seconds: float = Field(
        default=600.0, gt=0, description="How often every object is reconciled without cause."
    )
    call_seconds: float = Field(default=10.0, gt=0, description="Longest time of one call to the API server.")
    lease_seconds: float = Field(
        default=15.0,
        ge=1,
        description="How long a leader that says nothing is waited for; it stops writing at two thirds.",
    )
    relist_seconds: float = Field(default=300.0, gt=0, description="How often everything watched is listed in full.")
    watch_silence_seconds: float = Field(
        default=80.0,
        gt=0,
        description="How long a watch may bring neither an event nor a bookmark before it is renewed.",
    )
    report_seconds: float = Field(default=10.0, gt=0, description="How often routers are asked for their reports.")
    report_urgent_seconds: float = Field(
        default=1.0, gt=0, description="The same during a drain, a rotation of keys, or at zero replicas."
    )
    log_level: str = Field(default="info", description="Least level of what is logged: debug, info, warning, error.")

    @field_validator("monitoring_labels", mode="before")
    @classmethod
    def _labels(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [pair.partition("=") for pair in value.split(",") if pair]
        if any(not name or not equals for name, equals, _ in pairs):
            raise ValueError("write label=value, several with commas between")
        return {name.strip(): text.strip() for name, _, text in pairs}

    @field_validator("log_level")
    @classmethod
    def _level(cls, value: str) -> str:
        if value.lower() not in ("debug", "info", "warning", "error"):
            raise ValueError("use debug, info, warning or error")
        return value.lower()

    def in_namespace(self) -> str:
        """The namespace of the release. Raises StartError if none is known."""
        if self.namespace:
            return self.namespace
        try:
            return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise StartError("This process is in no pod, so it knows no namespace: give --namespace.") from error


def options() -> list[click.Option]:
    """One option for each setting."""
    return [
        click.Option(
            [f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"]
            if field.annotation is bool
            else [f"--{name.replace('_', '-')}"],
            default=None,
            help=f"{field.description} [{VARIABLE_PREFIX}{name.upper()}; default: {_shown(field.get_default(call_default_factory=True))}]",
        )
        for name, field in Settings.model_fields.items()
    ]


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Settings from the options that were given. Raises StartError, in one sentence that names the option."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        variable = f"{VARIABLE_PREFIX}{name.upper()}"
        source = variable if given.get(name) is None and variable in os.environ else f"--{name.replace('_', '-')}"
        raise StartError(f"{source}: {first['msg'].removeprefix('Value error, ')}.") from error


def _shown(value: object) -> str:
    return "unset" if value is None or value == {} else str(value)
