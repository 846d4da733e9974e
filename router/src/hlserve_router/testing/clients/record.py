"""What a driver is told to call and what it reports, as JSON over its pipes.

A driver runs in the environment of its client, so this module imports the standard library only.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client.

    `operation` names what the driver does; `headers` and `body` are added to what the client sends by itself; `content`
    replaces the body, byte for byte, and `path` with `method` leave the client's own routes. `key` None: no key is sent.
    `prompt`: text, or a list of content parts.
    """

    id: str
    operation: str
    url: str
    key: str | None
    model: str = "m1"
    prompt: Any = "hi"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None
    method: str = "POST"
    path: str = ""
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call gave: text of the reply, and whatever else the operation looks at."""

    text: str = ""
    request_id: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception that the client's user gets, by the fields that its documentation names."""

    name: str
    message: str
    status: int | None = None
    code: str | None = None
    kind: str | None = None
    param: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One call as the client's user saw it. `sleeps_seconds`: how long it waited before each further try."""

    id: str
    sleeps_seconds: tuple[float, ...] = ()
    seen: Seen | None = None
    raised: Raised | None = None

    @property
    def tries(self) -> int:
        """Requests that the client sent, its own retries included."""
        return len(self.sleeps_seconds) + 1


@dataclass(frozen=True, slots=True)
class DriverOutput:
    """Everything that one run of a driver prints. `versions`: of the packages that it drives."""

    versions: Mapping[str, str]
    reports: tuple[Report, ...]


class PartialReplyError(Exception):
    """A reply broke off; carries the text that had come, and the client's exception as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def collect(pieces: Iterable[str]) -> str:
    """The whole text; a break in it keeps what had come."""
    text: list[str] = []
    try:
        text.extend(pieces)
    except Exception as error:
        raise PartialReplyError("".join(text)) from error
    return "".join(text)


def send_raw(client: Any, call: Call, headers: Mapping[str, Any]) -> Seen:
    """Any path and body by an official SDK's client, with its own transport, errors and retries: both SDKs are made alike."""
    url = f"{call.url}{call.path}"
    if call.method == "GET":
        client.get(url, cast_to=object, options={"headers": headers})
    elif call.content is not None:
        options = {"headers": {"content-type": "application/json", **headers}}
        client.post(url, cast_to=object, content=call.content.encode(), options=options)
    else:
        client.post(url, cast_to=object, body=dict(call.body), options={"headers": headers})
    return Seen()


THREADS: Final = 6
"""Calls at once: most of them wait for something."""


class _Sleeps(threading.local):
    """How long the call of this thread was to sleep, each time; None: this thread makes no calls."""

    seconds: list[float] | None = None


def drive(
    versions: Mapping[str, str], perform: Callable[[Call], Seen], describe: Callable[[Exception], Raised]
) -> None:
    """Reads calls from stdin, makes them, prints one `DriverOutput` with the reports in the same order.

    A client's waits before its retries are noted and not slept: they are whole seconds, and many. A client's own threads
    sleep as ever, else those that look after something from time to time would do nothing else.
    """
    sleeps = _Sleeps()
    sleep = time.sleep

    def note(seconds: Any) -> None:
        if sleeps.seconds is None:
            sleep(seconds)
        else:
            sleeps.seconds.append(float(seconds))

    def report(call: Call) -> Report:
        slept: list[float] = []
        sleeps.seconds = slept
        seen: Seen | None = None
        raised: Raised | None = None
        try:
            seen = perform(call)
        except PartialReplyError as partial:
            cause = partial.__cause__
            seen = Seen(partial.text)
            raised = describe(cause) if isinstance(cause, Exception) else None
        except Exception as error:  # whatever a client raises is what is to be seen
            raised = describe(error)
        return Report(call.id, tuple(slept), seen, raised)

    time.sleep = note
    with ThreadPoolExecutor(THREADS) as threads:
        reports = tuple(threads.map(report, [Call(**fields) for fields in json.load(sys.stdin)]))
    json.dump(asdict(DriverOutput(versions, reports)), sys.stdout)


def parse_output(text: str) -> DriverOutput:
    """What a driver printed."""
    output = json.loads(text)
    reports = tuple(
        Report(
            item["id"],
            tuple(item["sleeps_seconds"]),
            None if item["seen"] is None else Seen(**item["seen"]),
            None if item["raised"] is None else Raised(**item["raised"]),
        )
        for item in output["reports"]
    )
    return DriverOutput(output["versions"], reports)
