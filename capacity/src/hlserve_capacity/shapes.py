"""The model catalogue: the dimensions of a dense decoder that its cost and its KV footprint follow from."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hlserve_capacity.lookup import find


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder. Sizes are counts of elements, bytes where the name says so."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    context_length: int | None = None
    """Longest prompt plus reply the model was trained for; None: unknown."""
    gated_mlp: bool = True
    bytes_per_parameter: float = 2.0
    bytes_per_kv_element: float = 2.0

    def __post_init__(self) -> None:
        for field in ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocabulary"):
            if getattr(self, field) < 1:
                raise ValueError(f"model shape {self.name!r}: {field} is {getattr(self, field)}, it must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model shape {self.name!r}: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )

    @property
    def linear_parameters(self) -> int:
        """Weights that every token is multiplied with, the vocabulary head apart."""
        attention = self.hidden_size * (self.heads + 2 * self.kv_heads) * self.head_dim
        output = self.heads * self.head_dim * self.hidden_size
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        return self.layers * (attention + output + mlp)

    @property
    def parameters(self) -> int:
        """All weights: the layers, the embedding and the vocabulary head."""
        return self.linear_parameters + 2 * self.vocabulary * self.hidden_size

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights."""
        return self.parameters * self.bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token in all layers: 2 · layers · kv_heads · head_dim · bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_kv_element


def custom(
    name: str,
    *,
    parameters: int,
    layers: int,
    hidden_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    bytes_per_parameter: float = 2.0,
    vocabulary: int = 128_256,
) -> ModelShape:
    """A shape from the figures a ServingPool's `model.shape` gives; the MLP's width follows from the parameter count.

    Raises ValueError if the parameter count leaves nothing for the MLP.
    """
    attention = layers * hidden_size * head_dim * (2 * heads + 2 * kv_heads)
    embeddings = 2 * vocabulary * hidden_size
    mlp = parameters - attention - embeddings
    intermediate_size = round(mlp / (3 * layers * hidden_size))
    if intermediate_size < 1:
        raise ValueError(
            f"model shape {name!r}: {parameters:,} parameters are too few for {layers} layers of hidden size "
            f"{hidden_size}; attention and embeddings alone have {attention + embeddings:,}"
        )
    return ModelShape(
        name=name,
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        vocabulary=vocabulary,
        bytes_per_parameter=bytes_per_parameter,
    )


def _shape(
    name: str,
    layers: int,
    hidden_size: int,
    heads: int,
    kv_heads: int,
    intermediate_size: int,
    vocabulary: int,
    context_length: int,
    gated_mlp: bool = True,
) -> ModelShape:
    return ModelShape(
        name=name,
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        intermediate_size=intermediate_size,
        vocabulary=vocabulary,
        context_length=context_length,
        gated_mlp=gated_mlp,
    )


_SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            _shape("llama-3.1-8b", 32, 4096, 32, 8, 14_336, 128_256, 131_072),
            _shape("llama-3.1-70b", 80, 8192, 64, 8, 28_672, 128_256, 131_072),
            _shape("qwen2.5-32b", 64, 5120, 40, 8, 27_648, 152_064, 32_768),
            _shape("qwen3-32b", 64, 5120, 64, 8, 25_600, 151_936, 40_960),
            _shape("qwen-72b", 80, 8192, 64, 64, 24_576, 152_064, 32_768),
            _shape("codellama-34b", 48, 8192, 64, 8, 22_016, 32_768, 16_384),
            _shape("opt-13b", 40, 5120, 40, 40, 20_480, 50_272, 2048, gated_mlp=False),
            _shape("opt-66b", 64, 9216, 72, 72, 36_864, 50_272, 2048, gated_mlp=False),
        )
    }
)

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "llama-3-8b": "llama-3.1-8b",
        "llama-3.1-8b-instruct": "llama-3.1-8b",
        "llama-3-70b": "llama-3.1-70b",
        "llama-3.1-70b-instruct": "llama-3.1-70b",
        "llama-3.3-70b-instruct": "llama-3.1-70b",
        "qwen2.5-32b-instruct": "qwen2.5-32b",
        "qwen2.5-coder-32b-instruct": "qwen2.5-32b",
    }
)


def names() -> tuple[str, ...]:
    """The shapes the catalogue holds, sorted."""
    return tuple(sorted(_SHAPES))


def by_name(name: str) -> ModelShape:
    """The shape called `name`; an organisation's prefix (`meta-llama/…`) is ignored.

    Raises UnknownNameError, which lists the known names.
    """
    return find(_SHAPES, _ALIASES, name.rsplit("/", 1)[-1], "model shape")
