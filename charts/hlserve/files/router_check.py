"""Sends one chat and one agent call through the routers, as `helm test` runs it: a pod with this text as its program. Needs only Python.

Reads ROUTER_URL, RELEASE, and for each call CHAT_KEY and CHAT_MODEL, AGENT_KEY and AGENT_MODEL. Exit status: 0 both were answered.
"""

import http.client
import json
import os
import ssl
import sys
import time
from urllib.parse import urlsplit

CALLS = {"chat": True, "agent": False}
"""Whether each call is streamed, as its clients mostly do."""
WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "120"))
"""How long a router or pool that is only starting is waited for."""
CALL_SECONDS = 120.0


class CheckError(Exception):
    """Why a call was not answered as it should be."""


class NotYetError(CheckError):
    """It may go better in a moment."""


def ask(method: str, path: str, key: str, body: object = None) -> tuple[http.client.HTTPResponse, str]:
    """The router's answer: status, headers, text. Raises NotYetError if nobody answers."""
    url = urlsplit(os.environ["ROUTER_URL"])
    host = url.hostname or ""
    if url.scheme == "https":
        # The Service's name need not be in the certificate, which is for clients outside.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, url.port, timeout=CALL_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, url.port, timeout=CALL_SECONDS)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise NotYetError(f"{os.environ['ROUTER_URL']} does not answer ({error or type(error).__name__})") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        kind = NotYetError if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE else CheckError
        raise kind(f"the router answered {answer.status}: {told(text)}")
    return answer, text


def told(text: str) -> str:
    """The reason and sentence of an error body."""
    try:
        error = json.loads(text)["error"]
        return f"{error.get('code') or error.get('type')}, {error.get('message')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return text[:300]


def check(call: str, key: str, model: str, streamed: bool) -> str:
    """Sends the call; returns what to tell of it. Raises CheckError."""
    if not model:
        _, text = ask("GET", "/v1/models", key)
        models = [each["id"] for each in json.loads(text)["data"]]
        if not models:
            raise NotYetError("its key may use no model: is there a pool for its class?")
        model = models[0]
    body = {"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}
    started = time.monotonic()
    answer, text = ask("POST", "/v1/chat/completions", key, {**body, "stream": True} if streamed else body)
    complete = "data: [DONE]" in text if streamed else bool(json.loads(text)["choices"])
    if not complete:
        raise CheckError(f"the reply is not complete: {text[-300:]}")
    served = answer.headers
    return (
        f"{call}: answered by pool {served['x-hlserve-pool']} for class {served['x-hlserve-class']}, model {model}, "
        f"in {time.monotonic() - started:.1f} s"
    )


def main() -> int:
    """Both calls; says what to set if a key is missing."""
    missing = [call for call in CALLS if not os.environ.get(f"{call.upper()}_KEY")]
    if missing:
        options = " ".join(f"--set test.keys.{call}.secretName=SECRET" for call in CALLS)
        sys.stdout.write(
            f"There is no key for: {', '.join(missing)}. Name Secrets of this namespace that hold client keys, under the key `key` or\n"
            f"test.keys.<call>.secretKey (for a ClientKey NAME whose credential ID has no secretRef it is NAME-ID), and test again:\n"
            f"  helm upgrade {os.environ.get('RELEASE', 'RELEASE')} charts/hlserve --reuse-values {options}\n"
        )
        return 1
    failed = 0
    until = time.monotonic() + WAIT_SECONDS
    for call, streamed in CALLS.items():
        while True:
            try:
                said = check(
                    call, os.environ[f"{call.upper()}_KEY"], os.environ.get(f"{call.upper()}_MODEL", ""), streamed
                )
            except NotYetError as error:
                if time.monotonic() < until:
                    time.sleep(1)
                    continue
                said, failed = f"{call}: FAILED, {error}", 1
            except CheckError as error:
                said, failed = f"{call}: FAILED, {error}", 1
            sys.stdout.write(f"{said}\n")
            break
    return failed


if __name__ == "__main__":
    sys.exit(main())
