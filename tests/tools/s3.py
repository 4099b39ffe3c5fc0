"""A real S3 server (moto) in a process of its own, which can be told to fail.

It does not share our process: delta-rs' filesystem holds the interpreter's lock while it waits.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.tools.processes import Launched

FAULTS = ("none", "careless", "lose-commits", "late-commits", "refuse-keys")
"""Besides ``stop-after-N``: after N requests which change something, all such are refused; and
``unreadable STATUS PART``: what reads objects, or lists folders, with PART in their names; and
``unlisted PART``: no listing shows objects with PART in their names.
"""

READING = ("GET", "HEAD")
"""Methods that change nothing: an end before one leaves what an end before the next change does."""


class Faulty:
    """A WSGI application with faults in front of it; ``POST /-/FAULT`` sets which."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.fault = "none"
        self.one_at_a_time = threading.Lock()
        self.requests = 0
        self.go_on = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/-/requests":
            count = b"%d" % self.requests
            start_response("200 OK", [("Content-Length", str(len(count)))])
            return [count]
        if path.startswith("/-/"):
            self.fault = path.removeprefix("/-/")
            if self.fault == "none":
                self.go_on.set()
            start_response("204 No Content", [])
            return []
        self.requests += 1
        if self.fault == "careless":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if self.fault == "refuse-keys":
            return denied(start_response)
        if self.fault.startswith("unreadable ") and environ["REQUEST_METHOD"] in READING:
            _, status, part = self.fault.split(" ")
            if part in path + urllib.parse.unquote(environ.get("QUERY_STRING", "")):
                return denied(start_response, status)
        if self.fault.startswith("stop-after-") and environ["REQUEST_METHOD"] not in READING:
            left = int(self.fault.removeprefix("stop-after-"))
            if left == 0:
                return denied(start_response)
            self.fault = f"stop-after-{left - 1}"
        if self.fault == "lose-commits" and environ["REQUEST_METHOD"] == "PUT":
            self.fault = "none"
            list(self.application(environ, lambda *_: None))
            start_response("500 Internal Server Error", [("Content-Length", "0")])
            return []
        if self.fault == "late-commits" and environ["REQUEST_METHOD"] == "PUT":
            self.fault = "late"
            environ["wsgi.input"] = io.BytesIO(
                environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            )
            self.go_on.clear()
            self.go_on.wait()  # until there is no fault any more
        answer: Iterable[bytes]
        if "HTTP_IF_NONE_MATCH" in environ:
            # moto looks and then writes, and lets two at once both pass; S3 does not.
            with self.one_at_a_time:
                answer = list(self.application(environ, start_response))
            return answer
        if self.fault.startswith("unlisted ") and "list-type" in environ.get("QUERY_STRING", ""):
            return self.unlisted(environ, start_response)
        answer = self.application(environ, start_response)
        return answer

    def unlisted(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        answer: list[Any] = []
        body = b"".join(self.application(environ, lambda *head: answer.extend(head[:2])))
        hidden = re.escape(self.fault.removeprefix("unlisted ").encode())
        one = rb"<Contents>(?:(?!</Contents>).)*?" + hidden + rb".*?</Contents>"
        body = re.sub(one, b"", body, flags=re.DOTALL)
        headers = [each for each in answer[1] if each[0].lower() != "content-length"]
        start_response(answer[0], [*headers, ("Content-Length", str(len(body)))])
        return [body]


def denied(start_response: Any, status: str = "403") -> Iterable[bytes]:
    body = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key is not known.</Message></Error>"
    start_response(f"{status} Refused", [("Content-Length", str(len(body)))])
    return [body]


class Store:
    bucket = "bucket"

    def __init__(self, address: str) -> None:
        self.address = address
        self.count = 0

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint_url": self.address,
            "aws_allow_http": "true",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
        }

    def new_location(self) -> str:
        self.count += 1
        return f"s3://{self.bucket}/table-{os.getpid()}-{self.count}"

    def copy_of(self, location: str) -> str:
        """A new location with the same objects; the server copies them."""
        copy = self.new_location()
        old, new = (place.removeprefix(f"s3://{self.bucket}/") for place in (location, copy))
        listed = self._asked("GET", f"{self.bucket}?list-type=2&prefix={old}/").decode()
        keys = re.findall(r"<Key>([^<]+)</Key>", listed)
        assert keys and "<IsTruncated>false" in listed
        for key in map(urllib.parse.quote, keys):
            source = {"x-amz-copy-source": f"/{self.bucket}/{key}"}
            self._asked("PUT", f"{self.bucket}/{new}{key.removeprefix(old)}", source)
        return copy

    def fault(self, name: str) -> None:
        assert name in FAULTS or name.startswith(("stop-after-", "unreadable ", "unlisted "))
        self._asked("POST", f"-/{urllib.parse.quote(name)}")

    def requests(self) -> int:
        """How many requests have come so far."""
        return int(self._asked("GET", "-/requests"))

    def etags(self, location: str) -> dict[str, str]:
        """What tells the bytes of each object below a location from others."""
        prefix = location.removeprefix(f"s3://{self.bucket}/")
        listed = self._asked("GET", f"{self.bucket}?list-type=2&prefix={prefix}/").decode()
        assert "<IsTruncated>false" in listed
        found = re.findall(r"<Key>([^<]+)</Key>.*?<ETag>([^<]+)</ETag>", listed, re.DOTALL)
        return {key.removeprefix(prefix): tag for key, tag in found}

    def _asked(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> bytes:
        address = f"{self.address}/{path}"
        request = urllib.request.Request(address, method=method, headers=dict(headers or {}))
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())


@contextlib.contextmanager
def running_store() -> Iterator[Store]:
    launched = Launched([sys.executable, "-m", "tests.tools.s3"])
    try:
        address = launched.line(r"listening on (\S+)")[1]
        store = Store(address)
        request = urllib.request.Request(f"{address}/{store.bucket}", method="PUT", data=b"")
        urllib.request.urlopen(request).close()
        yield store
    finally:
        launched.end()


def main() -> None:
    import logging

    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # One connection for many requests; and moto's own server asks anew for each of them which of
    # a hundred services it is for.
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, Faulty(create_backend_app("s3")), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
