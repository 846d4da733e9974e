"""Holds streams open, one after another on each of several threads, until its standard input ends; then lets the last ones finish.

Its argument is JSON: `url`, `key`, `model`, `tokens` of a reply, `streams` at once. It prints one JSON object a line: `{"began": N}`
when the N-th stream has its first event, and the record of each that ended: whether the reply's last event came (`done`), the text of an
error event (`error`), how the connection failed (`cut`).
"""

import http.client
import json
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

PAUSE_SECONDS = 0.2
SILENCE_SECONDS = 120.0


class Holder:
    """The threads and what they share."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.began = 0

    def say(self, record: dict[str, Any]) -> None:
        with self.lock:
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()

    def first(self) -> None:
        with self.lock:
            self.began += 1
            number = self.began
        self.say({"began": number})

    def hold(self) -> None:
        while not self.stopped.is_set():
            self.say(self.stream())
            self.stopped.wait(PAUSE_SECONDS)

    def stream(self) -> dict[str, Any]:
        url = urlsplit(self.wanted["url"])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=SILENCE_SECONDS)
        started = time.monotonic()
        record: dict[str, Any] = {"status": 0, "pool": "", "events": 0, "done": False, "error": "", "cut": ""}
        text = b""
        try:
            connection.request("POST", "/v1/chat/completions", self.body(), self.headers())
            answer = connection.getresponse()
            record["status"], record["pool"] = answer.status, answer.headers.get("x-hlserve-pool", "")
            while data := answer.read1(65536):
                if not text:
                    self.first()
                text += data
        except (OSError, http.client.HTTPException) as error:
            record["cut"] = repr(error)
        finally:
            connection.close()
        events = [line[5:].strip() for line in text.splitlines() if line.startswith(b"data:")]
        record["events"] = len(events)
        record["done"] = events[-1:] == [b"[DONE]"]
        wrong = [event for event in events if event.startswith(b'{"error"')]
        if wrong or record["status"] != http.HTTPStatus.OK:
            record["error"] = (wrong[0] if wrong else text).decode(errors="replace")[:500]
        record["seconds"] = round(time.monotonic() - started, 2)
        return record

    def body(self) -> str:
        message = {"role": "user", "content": "Count as far as you can."}
        wanted = {"max_tokens": self.wanted["tokens"], "ignore_eos": True, "stream": True}
        return json.dumps({"model": self.wanted["model"], "messages": [message], **wanted})

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.wanted['key']}", "content-type": "application/json"}


def main() -> None:
    """Start the threads, wait for the end of the standard input, then for the threads."""
    holder = Holder(json.loads(sys.argv[1]))
    threads = [threading.Thread(target=holder.hold) for _ in range(holder.wanted["streams"])]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    holder.stopped.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
