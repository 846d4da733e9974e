"""Sends one request and prints its status, headers and text as JSON; a connection that fails is told as `{"failed": …}`.

Arguments: method, URL, headers as JSON, body (none if empty).
"""

import http.client
import json
import sys
from urllib.parse import urlsplit

SECONDS = 20.0


def main() -> None:
    """The one request."""
    method, address, headers, body = sys.argv[1:]
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=SECONDS)
    told: dict[str, object]
    try:
        connection.request(method, url.path, body or None, json.loads(headers))
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        told = {"status": answer.status, "headers": {k.lower(): v for k, v in answer.getheaders()}, "text": text}
    except (OSError, http.client.HTTPException) as error:
        told = {"failed": repr(error)}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
