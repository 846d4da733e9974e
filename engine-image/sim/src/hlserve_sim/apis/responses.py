"""`/v1/responses`: reading, and the answer that is not streamed."""

from collections.abc import Mapping, Sequence

from hlserve_sim import wire
from hlserve_sim.apis.base import Api, Context, Stream
from hlserve_sim.apis.chat import effort
from hlserve_sim.apis.responses_objects import PREFIX, Echo, ResponseOrder, final_response, output_items
from hlserve_sim.apis.responses_stream import ResponseStream
from hlserve_sim.errors import ApiError, nested
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.orders import Order, Reader, limit, request_id, schema_wanted
from hlserve_sim.prompts import responses_words
from hlserve_sim.replies import Tool
from hlserve_sim.response_store import ResponseStore

STORE_OFF = (
    "Response store is disabled. Stateful Responses require --enable-response-store on a standalone server; "
    "response storage is unavailable in PD mode."
)


class ResponsesApi(Api):
    """OpenAI responses. With the store on, ended responses are kept for GET and for `previous_response_id`."""

    holds_status = False

    def __init__(self, context: Context, store: ResponseStore, store_enabled: bool) -> None:
        super().__init__(context)
        self._store = store
        self._store_enabled = store_enabled

    def read(self, fields: Fields, reader: Reader) -> Order:
        model = fields.text("model") or self._context.served_model_name
        if model.partition(":")[0] != self._context.served_model_name and model != self._context.served_model_name:
            raise ApiError(f"The model '{model}' does not exist", 404, "invalid_request_error", "model")
        echo = self._echo(fields)
        tools = [_tool(item) for item in fields.children("tools")]
        history = [*self._earlier(echo.previous_response_id), *_items(fields.raw.get("input"))]
        prompt, digest = reader.words_prompt(responses_words(echo.instructions, history, tools))
        reasoning = fields.child("reasoning")
        return ResponseOrder(
            prompt=prompt,
            digest=digest,
            model=model,
            stream=fields.flag("stream"),
            rid=request_id(fields, "request_id"),
            priority=fields.integer("priority"),
            max_tokens=limit(echo.max_output_tokens, "max_output_tokens"),
            min_tokens=fields.integer("min_tokens") or 0,
            ignore_eos=fields.flag("ignore_eos"),
            stop=fields.strings("stop"),
            reasoning_effort=effort(reasoning.text("effort"), "reasoning.effort") if reasoning else None,
            tool=_forced_tool(echo.tool_choice, tools),
            json_schema=schema_wanted(fields.child("text"), "format"),
            include_usage=True,
            echo=echo,
            history=history,
        )

    def _echo(self, fields: Fields) -> Echo:
        echo = Echo(
            instructions=fields.text("instructions"),
            max_output_tokens=fields.integer("max_output_tokens"),
            previous_response_id=fields.text("previous_response_id"),
            store=fields.flag("store", default=True),
            background=fields.flag("background"),
            tools=fields.items("tools"),
            tool_choice=fields.raw.get("tool_choice") or "auto",
            metadata=fields.raw.get("metadata"),
        )
        if not self._store_enabled and echo.previous_response_id is not None:
            raise ApiError(STORE_OFF, kind="invalid_request_error", param="previous_response_id")
        if not self._store_enabled and echo.background:
            raise ApiError(STORE_OFF, kind="invalid_request_error", param="background")
        if echo.background and not echo.store:
            raise ApiError("background=true requires store=true.", kind="invalid_request_error", param="store")
        if echo.background and fields.flag("stream"):
            raise ApiError("background: the simulator runs it without stream; drop one of the two.", param="background")
        return echo

    def _earlier(self, response_id: str | None) -> Sequence[object]:
        if response_id is None:
            return ()
        check_id(response_id)
        if response_id not in self._store.histories:
            raise not_found(response_id)
        return self._store.histories[response_id]

    def whole(self, order: Order, live: Live, created: int) -> object:
        return final_response(order, live, created)

    def stream(self, order: Order, live: Live, created: int) -> Stream:
        return ResponseStream(order, live, created)

    def finished(self, order: Order, live: Live, created: int) -> None:
        if self._store_enabled and isinstance(order, ResponseOrder) and order.echo.store:
            answer = final_response(order, live, created)
            self._store.put(answer, [*order.history, *output_items(live)])

    def error(self, error: ApiError) -> Mapping[str, object]:
        return nested(error)

    def error_stream(self, error: ApiError, model: str) -> bytes:
        started = {
            "id": f"{PREFIX}refused",
            "object": "response",
            "model": model,
            "output": [],
            "status": "in_progress",
        }
        failure = {**started, "status": "failed", "error": {"code": "server_error", "message": error.message}}
        steps = (("response.created", started), ("response.in_progress", started), ("response.failed", failure))
        return b"".join(
            wire.named_sse(name, {"type": name, "sequence_number": number, "response": body})
            for number, (name, body) in enumerate(steps)
        )


def check_id(response_id: str) -> None:
    """Refuse what cannot be the id of a response."""
    if not response_id.startswith(PREFIX):
        raise ApiError(
            f"Invalid 'response_id': '{response_id}'. Expected an ID that begins with 'resp'.",
            kind="invalid_request_error",
            param="response_id",
        )


def not_found(response_id: str) -> ApiError:
    """No such response is stored."""
    return ApiError(f"Response with id '{response_id}' not found.", 404, "invalid_request_error", "response_id")


def _items(value: object) -> list[object]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if isinstance(value, list) and value:
        return list(value)
    raise ApiError("input: must be a string or a list of items", param="input")


def _tool(item: Fields) -> Tool:
    if item.text("type") != "function":
        raise ApiError(f"tools: type {item.text('type')!r} is not simulated, only 'function'", param="tools")
    parameters = item.child("parameters")
    return Tool(item.need_text("name"), dict(parameters.raw) if parameters else {})


def _forced_tool(choice: object, tools: list[Tool]) -> Tool | None:
    if choice in ("auto", "none"):
        return None
    if choice == "required":
        if not tools:
            raise ApiError('tool_choice="required" requires at least one tool with type="function".')
        return tools[0]
    name = choice.get("name") if isinstance(choice, dict) else None
    for tool in tools:
        if tool.name == name:
            return tool
    raise ApiError(f"Tool {name!r} is not declared in tools", param="tool_choice")
