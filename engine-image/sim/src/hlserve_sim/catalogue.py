"""Models and tokens over HTTP: `/v1/models`, `/tokenize`, `/detokenize`, `/v1/messages/count_tokens`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hlserve_sim.answers import errors_flat, json_answer, read_fields
from hlserve_sim.apis.chat import read_tools
from hlserve_sim.apis.messages import read_words
from hlserve_sim.errors import ApiError, anthropic
from hlserve_sim.prompts import chat_words
from hlserve_sim.server import Server


class Catalogue:
    """Handlers of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """All routes of this module."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/v1/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    def _card(self) -> dict[str, object]:
        name = self._server.flags.served_model_name
        return {
            "id": name,
            "object": "model",
            "created": int(self._server.started_at),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._server.setup.config.context_length,
        }

    async def models(self, request: Request) -> Response:
        """The one model there is."""
        return json_answer({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The model by its name."""
        name = request.path_params["model"]
        if name == self._server.flags.served_model_name:
            return json_answer(self._card())
        message = f"The model '{name}' does not exist"
        error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        return json_answer({"error": error}, 404)

    @errors_flat
    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text, of texts, or of a chat."""
        fields = await read_fields(request)
        prompt, vocabulary = fields.raw.get("prompt"), self._server.vocabulary
        limit = self._server.setup.config.context_length
        if (prompt is None) == (fields.raw.get("messages") is None):
            raise ApiError("Exactly one of 'prompt' or 'messages' must be provided.", kind="Bad Request")
        if prompt is None:
            ids = vocabulary.encode_words(chat_words(fields.children("messages"), read_tools(fields)))
            return json_answer({"tokens": ids, "count": len(ids), "max_model_len": limit})
        many = [vocabulary.encode(text) for text in fields.strings("prompt")]
        if isinstance(prompt, str):
            return json_answer({"tokens": many[0], "count": len(many[0]), "max_model_len": limit})
        return json_answer({"tokens": many, "count": [len(ids) for ids in many], "max_model_len": limit})

    @errors_flat
    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        fields = await read_fields(request)
        tokens = fields.items("tokens")
        if tokens and all(isinstance(row, list) for row in tokens):
            return json_answer({"text": [self._text(row) for row in tokens if isinstance(row, list)]})
        return json_answer({"text": self._text(tokens)})

    def _text(self, tokens: object) -> str:
        ids = [token for token in tokens if isinstance(token, int)] if isinstance(tokens, (list, tuple)) else []
        if not isinstance(tokens, (list, tuple)) or len(ids) != len(tokens):
            raise ApiError("tokens: must be token ids or lists of them", kind="Bad Request", param="tokens")
        return self._server.vocabulary.decode(ids)

    async def count_tokens(self, request: Request) -> Response:
        """Tokens of a messages prompt."""
        try:
            fields = await read_fields(request)
            fields.need_text("model")
            words, _ = read_words(fields)
        except ApiError as error:
            return json_answer(anthropic(error), error.status)
        return json_answer({"input_tokens": len(words)})
