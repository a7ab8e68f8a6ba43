"""The command line: results, exit codes and streams; signals to real processes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from probekit.provenance import PACKAGE
from tests.interrupting import interrupt
from tests.pipeline.planted import YAML, write_rows

PROBEKIT = Path(sys.executable).with_name("probekit")


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "rows.csv")
    (tmp_path / "planted.yaml").write_text(YAML)
    return tmp_path


@pytest.fixture
def environment(tmp_path):
    return {
        **os.environ,
        "PROBEKIT_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def probekit(folder, call, monkeypatch):
    monkeypatch.setenv("PROBEKIT_CACHE", str(folder / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
    return call


def test_run_prints_the_table_and_then_the_report_path(probekit, folder):
    first = probekit("cache", "planted.yaml")
    assert re.search(r"task: 96 rows, 3 shards computed, 0 reused", first.stdout), first.stderr
    second = probekit("cache", "planted.yaml")
    assert re.search(r"task: 96 rows, 0 shards computed, 3 reused", second.stdout)
    done = probekit("run", "planted.yaml")
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.search(
        r"blocks\.\d\.hook_resid_post \*\s+\d\.\d{3}\s+\[\d\.\d{3}, \d\.\d{3}\]", done.stdout
    )
    assert re.search(r"majority class +0\.50+ .*\nword identity +0\.50+ ", done.stdout)
    assert (folder / lines[-1]).is_file()
    assert "probe: 3 of 3" in done.stderr
    assert "probe:" not in done.stdout
    again = probekit("report", str((folder / lines[-1]).parent))
    assert again.stdout.strip().endswith("report.html")
    probed = probekit("run", "planted.yaml", "--no-page")
    assert probed.code == 0
    assert probed.stdout.strip().endswith("results.csv")


def test_validate_prints_the_cost_of_a_run(probekit):
    done = probekit("validate", "planted.yaml")
    assert done.code == 0, done.stderr
    assert "96 examples, 96 rows at each of 3 sites, 1.2 MB, " in done.stdout
    assert re.search(r"(less than a|about \d+) seconds? to capture on this machine", done.stdout)
    assert done.stdout.splitlines()[-1] == "ok"


def test_validate_reports_a_class_missing_from_training(probekit, folder):
    text = (folder / "rows.csv").read_text().splitlines()
    late = ["Late rows,green,y,test", "Later rows,red,z,test"]
    text = [text[0] + ",side", *(line + ",train" for line in text[1:]), *late]
    (folder / "rows.csv").write_text("\n".join(text) + "\n")
    done = probekit("validate", "planted.yaml", "--set", "data.columns.split=side")
    assert done.code == 2
    assert "Error: " in done.stdout  # as printed by a failing command
    assert "green" in done.stdout
    assert done.stdout.splitlines()[-1] == "not ok"


def test_attention_writes_a_page(probekit, folder):
    options = ("--text", "The keys", "--layer", "2", "--head", "3")
    done = probekit("attention", "--model", "mini", *options, "--out", "page.html")
    assert done.code == 0, done.stderr
    assert "keys" in (folder / "page.html").read_text()
    assert done.stderr == "About 0.1 MB: 1 head of 2 tokens.\n"
    assert done.stdout == "page.html\n"


def test_models_and_sites_need_no_network(probekit):
    models = probekit("experiments")
    assert "124,439,808" in models.stdout
    assert "mini" in models.stdout
    sites = probekit("sites", "gpt2")
    assert "208 tensors" in sites.stdout
    assert "n_heads=12 query_pos key_pos" in sites.stdout
    assert probekit("sites", "mini").code == 0


def test_version_is_printed(probekit):
    first, package, python, torch = probekit("--version").stdout.splitlines()
    assert re.fullmatch(r"probekit-lens \d+\.\d+\.\d+", first)
    assert Path(package.removeprefix("package").strip()) == PACKAGE
    assert python.endswith(".".join(map(str, sys.version_info[:3])))
    assert torch.startswith("torch    2.")


@pytest.mark.parametrize(("by", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_keeps_completed_work_and_prints_the_command_to_resume(
    folder, environment, by, expected
):
    code, errors = interrupt(
        [PROBEKIT, "run", "planted.yaml", "--set", "probe.permutations=100000"],
        lambda: list(folder.glob("cache/*/manifest.json")),
        by,
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert code == expected, errors
    assert "probekit run planted.yaml --set probe.permutations=100000" in errors
    assert "Traceback" not in errors
    assert list(folder.glob("cache/*/*/00000.json"))


@pytest.mark.parametrize(
    ("by", "expected", "workers"), [(signal.SIGINT, 130, "1"), (signal.SIGTERM, 143, "2")]
)
def test_interrupt_saves_no_partially_trained_mlp(folder, environment, by, expected, workers):
    changes = (
        "probe.kinds=[{kind: mlp}]",
        'capture.sites=["blocks.[03].hook_resid_post"]',
        "model.random_weights=false",
    )
    command = [PROBEKIT, "run", "planted.yaml", "--workers", workers]
    command += [part for change in changes for part in ("--set", change)]
    code, errors = interrupt(
        command,
        lambda: list(folder.glob("runs/*/*/sites/baselines.*")),  # the next step fits a site
        by,
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert code == expected, errors
    assert f"probekit run planted.yaml --workers {workers}" in errors
    assert "Traceback" not in errors
    assert "interrupted by user" not in errors
    assert not list(folder.glob("runs/*/*/results.csv"))
    assert not list(folder.glob("runs/*/*/sites/blocks*"))


def shell(command, folder, environment):
    """Return the result of a shell command."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_closed_pipe_is_no_error(folder, environment):
    done = shell(f"{PROBEKIT} sites gpt2 | head -n 1", folder, environment)
    assert done.stdout.startswith("site")
    assert not done.stderr


@pytest.mark.parametrize("arguments", ["cache ls", "sites mini", "--version"])
def test_full_disk_behind_stdout_is_reported(folder, environment, arguments):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    done = shell(f"{PROBEKIT} {arguments} > /dev/full", folder, environment)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device.\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_stream_is_ignored(folder, environment, closed):
    done = shell(f"{PROBEKIT} cache ls {closed}", folder, environment)
    assert done.returncode == 0
    assert not done.stderr
    assert ("0 caches" in done.stdout) == (closed == "2>&-")


def test_local_model_folder_is_used(probekit, folder):
    from probekit.model.weights.sources import MINI

    model = folder / "model"
    model.mkdir()
    for name in ("config.json", "vocab.json", "merges.txt"):
        (model / name).write_bytes((MINI / name).read_bytes())
    tensors = safetensors.torch.load_file(MINI / "model.safetensors")
    safetensors.torch.save_file(tensors, model / "model.safetensors")
    few = ("--set", 'capture.sites=["blocks.0.hook_resid_post"]', "--no-page")
    few += ("--set", "model.random_weights=false", "--set", "probe.control_draws=0")
    assert probekit("run", "planted.yaml", "--set", "model.source=./model", *few).code == 0
    tensors["transformer.wpe.weight"] = torch.zeros(3, 3)
    safetensors.torch.save_file(tensors, model / "model.safetensors")
    done = probekit("run", "planted.yaml", "--set", "model.source=./model")
    assert done.code == 3
    assert "wrong shape: wpe.weight is (3, 3), must be (256, 256)" in done.stderr
