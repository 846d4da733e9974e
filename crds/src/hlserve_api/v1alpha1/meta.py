"""What every custom resource shares: the model base, CEL rules, bounded strings, references, metadata and conditions."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

GROUP: Final = "serving.hlserve.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule that the API server checks: `self` is the annotated value, `oldSelf` (if used) its former one.

    As a member of a model's `rules` it holds for the object; as `Annotated[...]` metadata, for the one field. `field_path`
    (such as `.claimName`) moves the complaint to that child, which cannot be in `metadata`. `message` tells the user what to do.
    """

    expression: str
    message: str
    field_path: str | None = None

    def as_validation(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        entry = {"rule": self.expression, "message": self.message}
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        schema = handler(core)
        return {
            **schema,
            "x-kubernetes-validations": [*schema.get("x-kubernetes-validations", ()), self.as_validation()],
        }


@dataclass(frozen=True, slots=True)
class Extension:
    """Schema keys (`x-kubernetes-*`, `format`) that pydantic has no words for, as `Annotated[...]` metadata."""

    keys: tuple[tuple[str, Any], ...]
    drop: tuple[str, ...] = ()

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        schema = {key: value for key, value in handler(core).items() if key not in self.drop}
        return {**schema, **dict(self.keys)}


def list_map(*keys: str) -> Extension:
    """A list whose items are identified by `keys`: server-side apply merges it item by item."""
    return Extension((("x-kubernetes-list-type", "map"), ("x-kubernetes-list-map-keys", list(keys))))


LIST_SET: Final = Extension((("x-kubernetes-list-type", "set"),))
LIST_ATOMIC: Final = Extension((("x-kubernetes-list-type", "atomic"),))
INT_OR_STRING: Final = Extension((("x-kubernetes-int-or-string", True),), drop=("type", "minLength"))
PRESERVE_UNKNOWN: Final = Extension((("x-kubernetes-preserve-unknown-fields", True),), drop=("additionalProperties",))

DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

Label = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)]
"""An RFC 1123 label: what names of WorkloadClasses, pools and credentials are made of."""
PoolName = Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
SecretKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
LabelKey = Annotated[str, StringConstraints(max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]
LabelMap = dict[str, LabelValue]


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    StringConstraints(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"),
    INT_OR_STRING,
    BeforeValidator(_as_text),
]
"""A Kubernetes quantity: `4`, `500m`, `64Gi`. Kept as text."""
IntOrPercent = Annotated[
    str,
    StringConstraints(max_length=10, pattern=r"^([0-9]{1,4}|([0-9]|[1-9][0-9]|100)%)$"),
    INT_OR_STRING,
    BeforeValidator(_as_text),
]
"""A count or a share of the replicas: `1`, `25%`. Kept as text."""


def int32(minimum: int, maximum: int) -> Any:
    """Field metadata of a bounded 32-bit integer."""
    return Field(ge=minimum, le=maximum)


def _add_rules(schema: JsonSchema, model: type[Any]) -> None:
    if model.rules:
        schema["x-kubernetes-validations"] = [rule.as_validation() for rule in model.rules]


class Node(BaseModel):
    """A part of a custom resource: frozen, camelCase on the wire, unknown fields ignored, CEL rules in `rules`."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", json_schema_extra=_add_rules
    )

    rules: ClassVar[tuple[Rule, ...]] = ()


class LocalReference(Node):
    """An object in the same namespace, by name."""

    name: ObjectName = Field(description="Name of the object, in the same namespace.")


class SecretKeyReference(Node):
    """One key of a Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret, in the same namespace.")
    key: SecretKey = Field(description="Key within the Secret's data.")


class ConditionStatus(StrEnum):
    """Whether a condition holds; Unknown: it could not be found out."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Node):
    """One observed condition; its types and reasons are listed in the conditions reference."""

    type: str = Field(
        description="Type of the condition, in CamelCase.", max_length=63, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$"
    )
    status: ConditionStatus = Field(description="True, False, or Unknown if it could not be found out.")
    reason: str = Field(
        description="Why, as one CamelCase word that programs can match.", max_length=63, pattern=r"^[A-Za-z]+$"
    )
    message: str = Field(default="", description="The same for people, with what to do next.", max_length=1024)
    last_transition_time: AwareDatetime = Field(description="When `status` last changed.")
    observed_generation: int = Field(
        default=0, description="The `metadata.generation` that this condition is about.", ge=0, le=2**53
    )


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), list_map("type")]


class ObjectMeta(Node):
    """The part of Kubernetes' object metadata that we read."""

    name: str = Field(description="Name, unique among objects of the kind in the namespace.", max_length=253)
    namespace: str = Field(default="default", description="Namespace of the object.", max_length=63)
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the object.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the object.")
    uid: str = Field(default="", description="Identity of this object; empty in a manifest file.")
    generation: int = Field(default=0, description="Counts changes of the spec; 0 in a manifest file.")
    resource_version: str = Field(default="", description="Version of the stored object; empty in a manifest file.")
    creation_timestamp: AwareDatetime | None = Field(default=None, description="When the object was created.")
    deletion_timestamp: AwareDatetime | None = Field(default=None, description="When its deletion was asked for.")


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of `kubectl get`; `wide`: shown with `-o wide` only."""

    name: str
    json_path: str
    type: str
    description: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where the scale subresource finds its numbers."""

    spec_replicas: str
    status_replicas: str
    label_selector: str


@dataclass(frozen=True, slots=True)
class KindNames:
    """How `kubectl` and the API call a kind."""

    kind: str
    plural: str
    singular: str
    short: str


class CustomResource(Node):
    """A whole object of one of our kinds."""

    names: ClassVar[KindNames]
    columns: ClassVar[tuple[PrinterColumn, ...]]
    scale: ClassVar[ScalePaths | None] = None

    api_version: str = Field(default=API_VERSION, description="`serving.hlserve.io/v1alpha1`.", max_length=253)
    kind: str = Field(description="Kind of the object.", max_length=63)
    metadata: ObjectMeta = Field(description="Standard object metadata.")

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name
