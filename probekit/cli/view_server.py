"""A local, read-only web server for the runs in a folder.

A requested page is looked up by its full name among the runs of the index, so that no path from a
request is ever joined to the folder.
"""

import math
import socket
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from probekit.errors import ConfigError, ProbekitError
from probekit.report.elements.page import Page, Paragraph, Texts
from probekit.report.elements.table import Cell
from probekit.report.pages.compare_page import comparison_page, load_runs, runs_page
from probekit.report.pages.index_page import find_runs, index_page
from probekit.report.pages.losses import losses_page
from probekit.report.pages.run_page import report_page
from probekit.report.pages.study_page import study_page
from probekit.results.record import STARTED
from probekit.results.study import STUDY_RECORD, StudyResult
from probekit.training.run_files import is_pretraining

HOST = "127.0.0.1"
# Other Host headers are rejected, to prevent DNS rebinding.
NAMES = (HOST, "localhost")
NO_RUN = "There is no such run in this folder: it was moved or deleted, or the address has a typo."
_HTTP_PORT = 80  # browsers omit it in the Host header


class NoPageError(ProbekitError):
    """There is no page at an address."""


def find_page(folder: Path, target: str) -> str:
    """Return the page for the target of a request.

    A run in progress is in the index, but has no page yet. `/overlay` and `/compare` have a
    parameter `run` for each run.

    Raises:
        NoPageError: There is no such page or run.
        ProbekitError: The page of a run cannot be built, or other runs are needed.
    """
    url = urlsplit(target)
    if url.path == "/":
        return index_page(folder)
    runs = {run.relative_to(folder).as_posix(): run for run in find_runs(folder, with_cells=True)}
    if url.path in ("/overlay", "/compare"):
        names = parse_qs(url.query).get("run", [])
        if not names:
            raise ConfigError("No run is ticked. Tick two or more on the list of runs.")
        if not runs.keys() >= set(names):
            raise NoPageError(NO_RUN)
        chosen = [runs[name] for name in names]
        if url.path == "/overlay":
            return runs_page(load_runs(chosen))
        if len(chosen) != 2:
            raise ConfigError("Two runs are compared. Tick two on the list of runs.")
        from probekit.pipeline.compare.compare import compare  # imports torch

        return comparison_page(compare(*chosen)).html()
    pages = {f"/{PurePosixPath('run', name, 'report.html')}": run for name, run in runs.items()}
    run = pages.get(unquote(url.path))
    if run is None:
        raise NoPageError(NO_RUN if url.path.startswith("/run/") else "This address has no page.")
    if (run / STARTED).exists():
        raise NoPageError("This run has not finished. Its page exists when it has.")
    if is_pretraining(run):
        page = losses_page(run).html()
    elif (run / STUDY_RECORD).exists():
        page = study_page(StudyResult(run)).html()
    else:
        page = report_page(run)
    return page


def error_page(problem: str) -> str:
    """Return a page with the reason why there is no other one, and a link to the list of runs."""
    link, title = Texts([Cell("Choose a run from the list", url="/")]), "This page cannot be shown"
    parts = (Paragraph(problem), link)
    return Page(["probekit"], title, answer="", sections=(), details=parts, styles=()).html()


class RunsServer(ThreadingHTTPServer):
    """Server with one thread per connection, a connection limit and a deadline for requests.

    Args:
        folder: results folder, the `--out` of the runs.
        port: 0 for any free port.

    Attributes:
        most_connections: maximum number of open connections; a further one closes the oldest that
            has not sent its request.
        request_seconds: timeout from the connection to the end of the request's headers.
        answer_seconds: timeout for sending the response.

    Raises:
        ConfigError: The port is taken, or not allowed for this user.
    """

    request_queue_size = 128
    most_connections = 64
    request_seconds = 10.0
    answer_seconds = 60.0

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        # Deadline of each open connection, oldest first; infinite once its request is complete.
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used: {error.strerror}. Give another port, or 0 for any "
                "free port."
            ) from error

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted Host headers."""
        with_port = tuple(f"{name}:{self.server_port}" for name in NAMES)
        return (*with_port, *NAMES) if self.server_port == _HTTP_PORT else with_port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a new thread.

        At the connection limit, the oldest one whose request is not complete is closed; without
        any, the new one is.
        """
        with self._lock:
            is_full = len(self._deadlines) >= self.most_connections
            idle = [other for other, end in self._deadlines.items() if end < math.inf]
            if is_full and idle:
                self._close(idle[0])
            is_admitted = not is_full or bool(idle)
            if is_admitted:
                self._deadlines[request] = time.monotonic() + self.request_seconds
        if is_admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def mark_complete(self, request: socket.socket) -> bool:
        """Mark a request as complete; return False if its connection was already closed."""
        with self._lock:
            if request not in self._deadlines:
                return False
            self._deadlines[request] = math.inf
        request.settimeout(self.answer_seconds)
        return True

    def service_actions(self) -> None:
        """Close connections whose request timed out; called twice a second."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, deadline in self._deadlines.items() if deadline < now]
            for request in late:
                self._close(request)

    def _close(self, request: socket.socket) -> None:
        """Shut down a connection, so that its thread reads the end of the stream and stops.

        The caller holds the lock.
        """
        del self._deadlines[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Unregister and close a connection after its response."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback, except for clients that disconnect or time out."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers the request of a connection with a page."""

    server: RunsServer

    def do_GET(self) -> None:
        """Send a page, or one with the reason why there is none."""
        if not self.server.mark_complete(self.connection):
            return
        # A request must have one Host header, with the name of this server.
        hosts = self.headers.get_all("Host", [])
        is_for_this_server = len(hosts) == 1 and hosts[0].lower() in self.server.hosts
        # A target with a scheme would override the Host header.
        if not is_for_this_server or not self.path.startswith("/"):
            self._send(HTTPStatus.FORBIDDEN, f"Use the address {self.server.hosts[0]}.", "plain")
            return
        try:
            page, status = find_page(self.server.folder, self.path), HTTPStatus.OK
        except ProbekitError as error:
            # The ticked runs, unlike the address of a single one, can be a wrong choice.
            is_choice = isinstance(error, ConfigError) and not self.path.startswith("/run/")
            status = HTTPStatus.BAD_REQUEST if is_choice else HTTPStatus.INTERNAL_SERVER_ERROR
            status = HTTPStatus.NOT_FOUND if isinstance(error, NoPageError) else status
            page = error_page(str(error))
        self._send(status, page, "html")

    def do_HEAD(self) -> None:
        """Send the headers of a page."""
        self.do_GET()

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
        """Do not log requests."""
