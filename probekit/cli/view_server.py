"""A server of the runs of a folder, to this machine alone.

It reads and never writes. A page is found among the runs that the index lists, by its whole name,
so that no path of a request is ever joined to the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from probekit.errors import ConfigError, MissingError, ProbekitError
from probekit.report.pages.index_page import STARTED, find_runs, index_page
from probekit.report.pages.run_page import report_page

HOST = "127.0.0.1"
# A page of another name that leads here, by a name server of its own, is not answered.
NAMES = (HOST, "localhost")


def serve(folder: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serve the runs of a folder until it is interrupted.

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
            return


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return the server of a folder, which listens already.

    Raises:
        MissingError: There is no such folder.
        ConfigError: The port is taken.
    """
    if not folder.is_dir():
        raise MissingError(
            f"There is no folder {folder}. Give the one that `probekit run --out` names, `runs` if "
            "it was not given."
        )
    handler = type("Handler", (_Handler,), {"folder": folder})
    try:
        return ThreadingHTTPServer((HOST, port), handler)
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


class _Handler(BaseHTTPRequestHandler):
    folder: Path

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in NAMES:
            self._send(HTTPStatus.FORBIDDEN, f"Ask for {HOST} or localhost.", "plain")
            return
        try:
            page = find_page(self.folder, urlsplit(self.path).path)
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
