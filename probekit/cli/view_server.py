"""A server of the runs of a folder, to this machine alone.

It reads and never writes. A page is found among the runs that the index lists, by its whole name,
so that no path of a request is ever joined to the folder.
"""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from probekit.errors import ConfigError, MissingError, ProbekitError
from probekit.report.pages.index_page import find_runs, index_page
from probekit.report.pages.run_page import report_page
from probekit.results.record import STARTED

HOST = "127.0.0.1"
# A page of another name that leads here, by a name server of its own, is not answered.
NAMES = (HOST, "localhost")
_HTTP_PORT = 80  # browsers leave it out of the Host header


@dataclass(frozen=True)
class Limits:
    """What clients may take of the server.

    Attributes:
        connections: open at once. One more closes the oldest that has not sent its request.
        request_seconds: from the connection to the end of the request's headers.
        answer_seconds: until the client has received the whole answer.
    """

    connections: int = 64
    request_seconds: float = 10.0
    answer_seconds: float = 60.0


def serve(folder: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serve the runs of a folder until Ctrl-C or SIGTERM, which end the process with code 0.

    Args:
        folder: that `--out` of a run names.
        port: 0 for a free one.
        ready: hears the address.

    Raises:
        MissingError: There is no such folder.
        ConfigError: The port is taken.
    """
    with make_server(folder, port) as server:
        ready(f"http://{HOST}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)


def make_server(folder: Path, port: int, limits: Limits | None = None) -> ThreadingHTTPServer:
    """Return the server of a folder, which listens already.

    Args:
        folder: that `--out` of a run names.
        port: 0 for a free one.
        limits: None for the default ones.

    Raises:
        MissingError: There is no such folder.
        ConfigError: The port is taken.
    """
    if not folder.is_dir():
        raise MissingError(
            f"There is no folder {folder}. Give the one that `probekit run --out` names, `runs` if "
            "it was not given."
        )
    try:
        return _Server(folder, port, limits or Limits())
    except OSError as error:
        raise ConfigError(
            f"--port {port} cannot be used: {error.strerror}. Give another, or 0 for a free one."
        ) from error


def find_page(folder: Path, path: str) -> str | None:
    """Return the page at the path of a request; None if there is none.

    Raises:
        ProbekitError: The page of a run cannot be made.
    """
    if path == "/":
        return index_page(folder)
    runs = {
        f"/run/{run.relative_to(folder).as_posix()}/report.html": run for run in find_runs(folder)
    }
    run = runs.get(unquote(path))
    if run is None or (run / STARTED).exists():
        return None
    return report_page(run)


class _Server(ThreadingHTTPServer):
    """A thread for each connection, with a bound on their number and a deadline for requests."""

    request_queue_size = 128

    def __init__(self, folder: Path, port: int, limits: Limits) -> None:
        self.folder = folder
        self.limits = limits
        # The deadline of each open connection, the oldest first; infinite once it has asked.
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The Host headers that are answered."""
        plain = NAMES if self.server_port == _HTTP_PORT else ()
        return (*(f"{name}:{self.server_port}" for name in NAMES), *plain)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, if there is room for it."""
        if self._admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _admit(self, request: socket.socket) -> bool:
        """Return False if all connections are being answered; close the oldest idle one if not."""
        with self._lock:
            if len(self._deadlines) >= self.limits.connections:
                idle = (one for one, deadline in self._deadlines.items() if deadline < math.inf)
                oldest = next(idle, None)
                if oldest is None:
                    return False
                self._close(oldest)
            self._deadlines[request] = time.monotonic() + self.limits.request_seconds
            return True

    def has_asked(self, request: socket.socket) -> bool:
        """Note that a request is complete; return False if its connection was closed before."""
        with self._lock:
            if request not in self._deadlines:
                return False
            self._deadlines[request] = math.inf
        request.settimeout(self.limits.answer_seconds)
        return True

    def service_actions(self) -> None:
        """Close, twice a second, the connections whose request takes too long."""
        now = time.monotonic()
        with self._lock:
            for request in [one for one, deadline in self._deadlines.items() if deadline < now]:
                self._close(request)

    def _close(self, request: socket.socket) -> None:
        """End the connection; its thread reads the end of the stream and stops."""
        del self._deadlines[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has been answered, and close it."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what is a defect here; a client that left early or was too slow is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer with a page."""
        if not self.server.has_asked(self.connection):
            return
        if not self._is_for_us():
            self._send(HTTPStatus.FORBIDDEN, f"Ask for {self.server.hosts[0]}.", "plain")
            return
        try:
            page = find_page(self.server.folder, urlsplit(self.path).path)
        except ProbekitError as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), "plain")
            return
        if page is None:
            self._send(HTTPStatus.NOT_FOUND, "There is no such run. / lists all.", "plain")
        else:
            self._send(HTTPStatus.OK, page, "html")

    def do_HEAD(self) -> None:
        """Answer without the page itself."""
        self.do_GET()

    def _is_for_us(self) -> bool:
        """Return whether the only Host header, and the target, name this server."""
        named = self.headers.get_all("Host", [])
        # A target with a scheme would name a host of its own.
        return (
            len(named) == 1 and named[0].lower() in self.server.hosts and self.path.startswith("/")
        )

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests are no news."""
