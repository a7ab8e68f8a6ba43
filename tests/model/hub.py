"""A hub on this machine: the requests of huggingface_hub, answered from a folder."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 40
GATED = ".gated"  # a file that makes a repository gated


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        # /org/name/resolve/revision/file
        if "/resolve/" not in self.path:  # /api/datasets/org/name/revision/...
            is_gated = "datasets" in self.path and (self.folder / GATED).is_file()
            return self._refuse(*(("GatedRepo", 401) if is_gated else ("EntryNotFound",)))
        _, org, name, _, revision, file = self.path.split("/", 5)
        if with_content:
            self.asked.append(file)
        commits = {"main": COMMIT}
        for path in (self.folder / org).glob(f"{name}@*"):
            commits[path.name.partition("@")[2]] = hashlib.sha1(path.name.encode()).hexdigest()
        if len(commits) == 1 and not (self.folder / org / name).is_dir():
            return self._refuse("RepoNotFound")
        names = {commit: branch for branch, commit in commits.items()}
        branch = names.get(revision, revision)
        if branch not in commits:
            return self._refuse("RevisionNotFound")
        folder = name if branch == "main" else f"{name}@{branch}"
        path = self.folder / org / folder / file
        if (path.parent / GATED).is_file():
            has_token = "Authorization" in self.headers
            return self._refuse("GatedRepo", 403 if has_token else 401)
        if not path.is_file():
            return self._refuse("EntryNotFound")
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        self._begin(200, commits[branch], {"ETag": tag, "Content-Length": len(content)})
        if with_content:
            self.wfile.write(content)
        return None

    def _refuse(self, code: str, status: int = 404) -> None:
        self._begin(status, COMMIT, {"X-Error-Code": code, "Content-Length": 0})

    def _begin(self, status: int, commit: str, headers: dict[str, object]) -> None:
        self.send_response(status)
        for name, value in {"X-Repo-Commit": commit, **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve org/name folders; yields the address and the list of the files that were fetched.

    A folder org/name@revision is another revision of org/name than main.
    """
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"folder": folder, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connect(monkeypatch, address: str, cache: Path) -> None:
    """Make huggingface_hub fetch from a served address."""
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    settings = {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template}
    for name, value in {**settings, "HF_HUB_CACHE": str(cache)}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
