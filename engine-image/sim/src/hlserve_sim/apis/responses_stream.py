"""The event stream of `/v1/responses`."""

from collections.abc import Mapping

from hlserve_sim import wire
from hlserve_sim.apis import responses_objects as objects
from hlserve_sim.apis.base import Stream
from hlserve_sim.errors import ApiError
from hlserve_sim.live import Live
from hlserve_sim.orders import Order
from hlserve_sim.replies import Kind

_ITEM = {
    Kind.REASONING: "reasoning",
    Kind.CONTENT: "message",
    Kind.TOOL_NAME: "function_call",
    Kind.TOOL_ARGUMENTS: "function_call",
}


class ResponseStream(Stream):
    """Typed events with a running sequence number; one output item is open at a time."""

    def __init__(self, order: Order, live: Live, created: int) -> None:
        self._order, self._live, self._created = order, live, created
        self._number = 0
        self._open: str | None = None
        self._index = -1
        self._text: list[str] = []

    def opening(self) -> bytes:
        started = objects.response(self._order, self._live, self._created, "in_progress", [])
        return self._event("response.created", response=started) + self._event("response.in_progress", response=started)

    def tokens(self, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        for at in range(start, stop):
            piece = self._live.reply.pieces[at]
            if piece.kind is Kind.SILENT:
                continue
            if _ITEM[piece.kind] != self._open:
                parts += self._close_item()
                parts += self._open_item(_ITEM[piece.kind], piece.text)
            if piece.kind is not Kind.TOOL_NAME:
                self._text.append(piece.text)
                parts.append(self._delta(piece.text))
        return b"".join(parts)

    def closing(self) -> bytes:
        parts = self._close_item()
        final = objects.final_response(self._order, self._live, self._created)
        return b"".join(parts) + self._event(f"response.{final['status']}", response=final)

    def failed(self, error: ApiError) -> bytes:
        broken = objects.response(self._order, self._live, self._created, "failed", [])
        broken["error"] = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=broken)

    def _event(self, event: str, /, **fields: object) -> bytes:
        body: Mapping[str, object] = {"type": event, "sequence_number": self._number, **fields}
        self._number += 1
        return wire.named_sse(event, body)

    def _place(self, part: bool) -> dict[str, object]:
        kinds = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
        place: dict[str, object] = {
            "output_index": self._index,
            "item_id": objects.item_id(self._live, kinds[self._open or ""]),
        }
        if part:
            place["content_index"] = 0
        return place

    def _open_item(self, kind: str, name: str) -> list[bytes]:
        self._open = kind
        self._index += 1
        self._text = []
        item = self._item(name, "in_progress")
        events = [self._event("response.output_item.added", output_index=self._index, item=item)]
        if kind != "function_call":
            events.append(self._event("response.content_part.added", **self._place(part=True), part=self._part("")))
        return events

    def _item(self, name: str, status: str) -> dict[str, object]:
        text = "".join(self._text)
        match self._open:
            case "reasoning":
                return objects.reasoning_item(self._live, text, status)
            case "message":
                return objects.message_item(self._live, text, status)
            case _:
                return objects.call_item(self._live, name, text, status)

    def _part(self, text: str) -> dict[str, object]:
        if self._open == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def _delta(self, text: str) -> bytes:
        match self._open:
            case "reasoning":
                return self._event("response.reasoning_text.delta", **self._place(part=True), delta=text)
            case "message":
                return self._event("response.output_text.delta", **self._place(part=True), delta=text, logprobs=[])
            case _:
                return self._event("response.function_call_arguments.delta", **self._place(part=False), delta=text)

    def _close_item(self) -> list[bytes]:
        if self._open is None:
            return []
        text = "".join(self._text)
        name = self._live.reply.text(Kind.TOOL_NAME)
        match self._open:
            case "reasoning":
                events = [self._event("response.reasoning_text.done", **self._place(part=True), text=text)]
            case "message":
                events = [self._event("response.output_text.done", **self._place(part=True), text=text, logprobs=[])]
            case _:
                done = "response.function_call_arguments.done"
                events = [self._event(done, **self._place(part=False), name=name, arguments=text)]
        if self._open != "function_call":
            events.append(self._event("response.content_part.done", **self._place(part=True), part=self._part(text)))
        item = self._item(name, "completed")
        events.append(self._event("response.output_item.done", output_index=self._index, item=item))
        self._open = None
        return events
