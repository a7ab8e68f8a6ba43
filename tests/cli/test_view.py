"""The server of runs: it shows those of its folder, and nothing else, to this machine alone."""

import http.client
import json
import threading

import pytest

from probekit.cli.view_server import make_server
from probekit.errors import ConfigError, MissingError


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "runs"
    run = folder / "n" / "a b%2f<b>"
    run.mkdir(parents=True)
    (run / "secret.txt").write_text("secret")
    (run / ".started").write_text("")
    return folder


@pytest.fixture
def get(root):
    with make_server(root, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def get(path, host=None, method="GET"):
            client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            client.putrequest(method, path, skip_host=True)
            client.putheader("Host", host or f"127.0.0.1:{server.server_port}")
            client.endheaders()
            answer = client.getresponse()
            body = answer.read().decode()
            client.close()
            return answer.status, body

        yield get
        server.shutdown()
        thread.join()


def test_the_index_grows_while_runs_go_on(get, root):
    status, page = get("/")
    assert status == 200
    assert "0 sites probed" in page
    assert "a b%2f&lt;b&gt;" in page
    (root / "other").mkdir()
    (root / "other" / ".started").write_text("")
    assert ">other<" in get("/")[1]
    assert get("/", method="HEAD") == (200, "")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/run/../../secret.txt",
        "/run/..%2f..%2fsecret.txt",
        "//etc/passwd",
        "/run/n/a%20b%252f%3Cb%3E/secret.txt",
        "/run/n/a%20b%252f%3Cb%3E/report.html",
        "/run/%00",
        "/run/n",
        "/secret.txt",
        "/run//report.html",
    ],
)
def test_nothing_but_finished_runs_is_answered(get, path):
    status, body = get(path)
    assert status == 404
    assert "secret" not in body


def test_a_page_of_another_name_is_not_answered(get):
    assert get("/", host="evil.example")[0] == 403
    assert get("/", host="localhost:80")[0] == 200
    assert get("/", method="POST")[0] == 501


def test_a_finished_run_is_shown_from_its_files(get, root, finished):
    finished.rename(root / "n" / "done ü")
    _, page = get("/")
    assert "finished" in page
    status, page = get("/run/n/done%20%C3%BC/report.html")
    assert status == 200
    assert "plotly" in page


@pytest.fixture
def finished(tmp_path):
    from tests.report.conftest import make_record, make_table

    folder = tmp_path / "finished"
    folder.mkdir()
    make_table().to_csv(folder / "results.csv", index=False)
    record = make_record() | {"attention": []}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "config.yaml").write_text("name: plural\n")
    return folder


def test_what_cannot_be_served_is_said(tmp_path):
    with pytest.raises(MissingError, match="no folder"):
        make_server(tmp_path / "none", 0)
    with make_server(tmp_path, 0) as server, pytest.raises(ConfigError, match="--port"):
        make_server(tmp_path, server.server_port)
