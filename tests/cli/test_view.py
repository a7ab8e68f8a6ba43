"""The server of runs serves only its folder, and only to this machine."""

import contextlib
import html
import http.client
import re
import signal
import socket
import struct
import threading
import time

import pytest

from probekit.cli.view_server import RunsServer
from probekit.errors import ConfigError
from probekit.provenance import seal
from probekit.training.run_files import write_log
from tests.report.conftest import HOSTILE, make_record, write_shown
from tests.report.pages.test_losses import a_log, write_pretraining
from tests.report.pictures import make_comparison


@pytest.fixture
def root(tmp_path):
    run = tmp_path / "runs" / "n" / "a b%2f<b>"
    run.mkdir(parents=True)
    for path in (tmp_path / "secret.txt", run / "secret.txt", run / ".started"):
        path.write_text("secret")
    return tmp_path / "runs"


@contextlib.contextmanager
def serving(folder, **limits):
    """A server of a folder that runs in a thread."""
    with RunsServer(folder, 0) as server:
        vars(server).update(limits)
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, *, hosts=None, method="GET"):
    """Return the status and body of a response."""
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    client.putrequest(method, path, skip_host=True)
    for host in [f"127.0.0.1:{server.server_port}"] if hosts is None else hosts:
        client.putheader("Host", host.format(port=server.server_port))
    client.endheaders()
    answer = client.getresponse()
    body = answer.read().decode()
    client.close()
    return answer.status, body


@pytest.fixture
def get(root):
    with serving(root) as server:
        yield lambda path, **given: ask(server, path, **given)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_server_with_code_0(call, root, monkeypatch, by):
    def serve_forever(server):
        signal.raise_signal(by)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", serve_forever)
    try:
        assert call("view", root).code == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_index_shows_new_runs(get, root):
    status, page = get("/")
    assert status == 200
    assert "a b%2f&lt;b&gt;" in page
    (root / "other").mkdir()
    (root / "other" / ".started").write_text("")
    assert '<tr data-run="other">' in get("/")[1]
    assert get("/", method="HEAD") == (200, "")


def test_a_pretraining_run_is_listed_and_served(get, root):
    folder = write_pretraining(root / "little", HOSTILE)
    index = get("/")[1]
    assert 'href="/run/little/report.html"' in index
    assert "After 700 of 1,000 steps, the held-out loss is 7.30 nats per token" in index
    assert 'class="state stopped"' in index  # no process holds the lock
    assert "nats per token" in get("/run/little/report.html")[1]
    assert not (folder / "losses.html").exists()  # the server writes nothing
    write_log(folder / "log.csv", a_log(1000))
    assert 'class="state finished"' in get("/")[1]
    (folder / "log.csv").unlink()
    assert "0 of 1,000 steps, no held-out loss yet" in get("/")[1]
    (folder / "run.json").write_text("{")
    assert 'class="state damaged"' in get("/")[1]
    plan = {"run": "little", "steps": 1000, "vocabulary": 8192}
    (folder / "run.json").write_bytes(seal(plan, 2))
    assert 'class="state version">written by another version</b>' in get("/")[1]


NOT_SERVED = "/../secret.txt /run/../../secret.txt /run/..%2f..%2fsecret.txt //etc/passwd"
NOT_SERVED += " /run/n/a%20b%252f%3Cb%3E/secret.txt /run/n/a%20b%252f%3Cb%3E/report.html"
NOT_SERVED += " /run/%00 /run/n /secret.txt /run//report.html"


@pytest.mark.parametrize("path", NOT_SERVED.split())
def test_only_finished_runs_are_served(get, path):
    status, body = get(path)
    assert status == 404
    assert "secret" not in body


OWN, FOREIGN = "127.0.0.1:{port}", "evil.example"
REFUSED = ("", FOREIGN, "127.0.0.1", "127.0.0.1:99", "127.0.0.1:99@evil.com", f"{FOREIGN}:{{port}}")
REFUSED += (f"{OWN}@evil.com", f"evil.com@{OWN}", f"{OWN}, {FOREIGN}", f"{OWN}\r\n {FOREIGN}")
HOSTS = {200: ([OWN], ["localhost:{port}"], ["LOCALHOST:{port}"])}
HOSTS[403] = ([], *([one] for one in REFUSED), [OWN, FOREIGN], [FOREIGN, OWN], [OWN, OWN])


@pytest.mark.parametrize(
    ("hosts", "status"), [(one, status) for status, some in HOSTS.items() for one in some], ids=repr
)
def test_only_exact_addresses_are_served(get, hosts, status):
    assert get("/", hosts=hosts)[0] == status


def test_foreign_hosts_and_methods_are_refused(get):
    assert get("http://evil.example/")[0] == 403
    assert get("/", method="POST")[0] == 501


HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX"


@pytest.fixture
def connect():
    """A function that opens a connection and sends half of a request."""
    with contextlib.ExitStack() as stack:

        def connect(server, sent=HALF):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
            )
            client.sendall(sent % server.server_port if b"%d" in sent else sent)
            return client

        yield connect


def test_300_slow_clients_do_not_block_others(root, connect):
    with serving(root, most_connections=20, request_seconds=1000) as server:
        slow = [connect(server) for _ in range(300)]
        for _ in range(3):
            assert ask(server, "/")[0] == 200
        names = [thread.name for thread in threading.enumerate()]
        assert sum("process_request_thread" in name for name in names) <= 21
        # The oldest connections were closed without a response to their incomplete requests.
        assert all(client.recv(1) == b"" for client in slow[:280])


def test_slow_request_is_closed(root, connect, monkeypatch):
    with serving(root, request_seconds=1000) as server:
        slow = connect(server)
        assert ask(server, "/")[0] == 200  # so that the server has accepted the slow client
        later = time.monotonic() + 1001
        monkeypatch.setattr("probekit.cli.view_server.time.monotonic", lambda: later)
        slow.sendall(b"-Sent: slowly")  # sending single bytes does not extend the time
        assert slow.recv(1) == b""


def test_excess_clients_are_refused_if_all_are_being_answered(root, connect, monkeypatch):
    begun, let_go = threading.Event(), threading.Event()

    def slow_page(folder, path):
        begun.set()
        let_go.wait(20)
        return "page"

    monkeypatch.setattr("probekit.cli.view_server.find_page", slow_page)
    with serving(root, most_connections=1) as server:
        first = connect(server, HALF + b"-A: b\r\n\r\n")
        assert begun.wait(20)
        assert connect(server, b"").recv(1) == b""
        let_go.set()
        assert b"200 OK" in first.recv(100)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP", HALF, HALF + b": y\r\n\r\n"])
def test_early_disconnect_is_not_reported(root, connect, monkeypatch, capfd, sent):
    """The connection is reset, so that writing to it raises."""
    left = threading.Event()

    def page(folder, path):
        left.wait(20)
        return "x" * 10_000_000  # more than fits into the system's buffers

    monkeypatch.setattr("probekit.cli.view_server.find_page", page)
    with serving(root) as server:
        client = connect(server, sent)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        left.set()
        assert ask(server, "/")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_internal_errors_are_printed_and_the_server_continues(root, monkeypatch, capsys):
    def broken(folder, path):
        raise ZeroDivisionError("a defect")

    with serving(root) as server:
        with monkeypatch.context() as patched:
            patched.setattr("probekit.cli.view_server.find_page", broken)
            with pytest.raises(http.client.RemoteDisconnected):
                ask(server, "/")
        assert ask(server, "/")[0] == 200
    assert "ZeroDivisionError: a defect" in capsys.readouterr().err


def test_finished_run_is_rendered_from_its_files(get, root):
    write_shown(root / "n" / "done ü", record=make_record() | {"attention": []})
    assert 'href="/run/n/done%20%C3%BC/report.html"' in get("/")[1]
    status, page = get("/run/n/done%20%C3%BC/report.html")
    assert status == 200
    assert "plotly" in page
    with serving(root / "n" / "done ü") as server:  # the folder of a run instead of that of all
        assert 'href="/run/report.html"' in ask(server, "/")[1]
        assert ask(server, "/run/report.html") == (200, page)


def test_ticked_runs_are_overlaid_or_compared(get, root, monkeypatch):
    for key in ("a", "b"):
        write_shown(root / "n" / key, record=make_record() | {"key": key})
    monkeypatch.setattr(
        "probekit.pipeline.compare.compare.compare",
        lambda *runs: make_comparison(" ".join(run.name for run in runs)),
    )
    two = "run=n%2Fa&run=n%2Fb"
    assert "Accuracy by layer and run" in get(f"/overlay?{two}")[1]
    assert "a b" in get(f"/compare?{two}")[1]
    status, page = get("/compare?run=n%2Fa")
    assert (status, shown(page)) == (400, "Two runs are compared. Tick two on the list of runs.")
    assert get("/overlay")[0] == get("/compare")[0] == 400
    assert get("/overlay?run=..&run=n%2Fa")[0] == 404
    assert get(f"/compare?{two}&run=n%2F..")[0] == 404


def shown(page):
    """The reason on a page of an error, whose house style and link to the list are checked."""
    assert "--page: #ffffff" in page  # of base.css
    assert "<h1><bdi>This page cannot be shown</bdi></h1>" in page
    assert '<a href="/"><bdi>Choose a run from the list</bdi></a>' in page
    assert "Traceback" not in page
    (reason,) = re.findall(r"<p>(.*?)</p>", page)
    return html.unescape(reason)


def test_each_error_is_a_page_with_its_reason_its_status_and_a_link_to_the_list(get, root):
    done = root / "n" / "done"
    write_shown(done, record=make_record() | {"attention": []})
    (done / "results.csv").write_text("nonsense")
    gone, going = "/run/n/gone/report.html", "/run/n/a%20b%252f%3Cb%3E/report.html"
    words = {
        "/other": (404, "This address has no page."),
        gone: (404, "There is no such run in this folder"),
        f"/overlay?run=n%2Fgone&run={done.name}": (404, "There is no such run in this folder"),
        going: (404, "This run has not finished. Its page exists when it has."),
        "/run/n/done/report.html": (500, f"{done} is damaged"),
    }
    for path, (expected, reason) in words.items():
        status, page = get(path)
        assert (status, shown(page).partition(":")[0]) == (expected, reason)


def test_a_taken_port_is_reported(tmp_path):
    with RunsServer(tmp_path, 0) as server, pytest.raises(ConfigError, match="--port"):
        RunsServer(tmp_path, server.server_port)
