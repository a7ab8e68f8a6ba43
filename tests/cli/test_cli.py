"""The command line: results, exit codes and streams; signals to real processes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probekit.provenance import PACKAGE
from tests.cli.conftest import without_digits
from tests.interrupting import interrupt
from tests.pipeline.planted import YAML, write_rows

PROBEKIT = Path(sys.executable).with_name("probekit")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an experiment and its rows, and an environment without a network."""
    write_rows(tmp_path / "rows.csv")
    (tmp_path / "planted.yaml").write_text(YAML)
    monkeypatch.setenv("PROBEKIT_CACHE", "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_run_prints_the_table_and_then_the_report_path(printed, folder, snapshot):
    lines = ["cache planted.yaml"] * 2 + ["run planted.yaml", "run planted.yaml --no-page"]
    done = [printed(line) for line in lines]
    (run,) = folder.glob("runs/planted/*")
    done.append(printed(f"report {run.relative_to(folder)}"))
    # A loaded machine is slow enough for an estimate of the time left.
    lines = [one for one in "\n".join(done).split("\n") if not one.endswith(" left")]
    assert without_digits("\n".join(lines)) == snapshot


def test_version_is_printed(call):
    first, package, python, torch = call("--version").stdout.splitlines()
    assert re.fullmatch(r"probekit-lens \d+\.\d+\.\d+", first)
    assert Path(package.removeprefix("package").strip()) == PACKAGE
    assert python.endswith(".".join(map(str, sys.version_info[:3])))
    assert torch.startswith("torch    2.")


def interrupted(folder, arguments, is_due, by):
    """Return the output of a command that is stopped by a signal, which sets its exit code."""
    code, errors = interrupt(
        [PROBEKIT, "run", "planted.yaml", *arguments],
        lambda: list(folder.glob(is_due)),
        by,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert code == 128 + by, errors
    assert "Traceback" not in errors
    return errors


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_completed_work_and_prints_the_command_to_resume(folder, by):
    long = ("--set", "probe.permutations=100000")
    errors = interrupted(folder, long, "cache/*/manifest.json", by)
    assert "probekit run planted.yaml --set probe.permutations=100000" in errors
    assert list(folder.glob("cache/*/*/00000.json"))


@pytest.mark.parametrize(("by", "workers"), [(signal.SIGINT, "1"), (signal.SIGTERM, "2")])
def test_interrupt_saves_no_partially_trained_mlp(folder, by, workers):
    sites = 'capture.sites=["blocks.[03].hook_resid_post"]'
    options = ["--workers", workers, "--set", sites, "--set", "model.random_weights=false"]
    options += ["--set", "probe.kinds=[{kind: mlp}]"]
    # The next step fits a site.
    errors = interrupted(folder, options, "cache/*/manifest.json", by)
    assert f"probekit run planted.yaml --workers {workers}" in errors
    assert "interrupted by user" not in errors
    assert not list(folder.glob("runs/*/*/results.csv"))
    assert not list(folder.glob("runs/*/*/sites/blocks*"))


def shell(command, folder):
    """Return the result of a shell command."""
    command = ["bash", "-c", f"{PROBEKIT} {command}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_closed_pipe_is_no_error(folder):
    done = shell("sites gpt2 | head -n 1", folder)
    assert done.stdout.startswith("site")
    assert not done.stderr


@pytest.mark.parametrize("arguments", ["cache ls", "sites mini", "--version"])
def test_full_disk_behind_stdout_is_reported(folder, arguments):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    done = shell(f"{arguments} > /dev/full", folder)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device.\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_stream_is_ignored(folder, closed):
    done = shell(f"cache ls {closed}", folder)
    assert done.returncode == 0
    assert not done.stderr
    assert ("0 caches" in done.stdout) == (closed == "2>&-")
