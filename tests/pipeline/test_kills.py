"""Commands killed at random times leave no partial result, and the next call succeeds."""

import contextlib
import shutil
import sys
import time

import pandas as pd
import pytest

from probekit.errors import MissingError
from probekit.pipeline.compare.compare import FinishedRun
from tests.killing import Commands
from tests.pipeline.planted import QUICK, YAML, write_rows

SETTINGS = [part for setting in QUICK[1:-1] for part in ("--set", setting)]
CACHED = [*SETTINGS, "--cache", "cache"]
SITE = "blocks.3.hook_resid_post"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two experiments and a finished run of each, and a runner of commands."""
    folder = tmp_path_factory.mktemp("kills")
    write_rows(folder / "rows.csv")
    pd.read_csv(folder / "rows.csv").iloc[:64].to_csv(folder / "fewer.csv", index=False)
    other = YAML.replace("name: planted", "name: other").replace("rows.csv", "fewer.csv")
    with contextlib.closing(Commands(folder)) as commands:
        for name, yaml in {"planted": YAML, "other": other}.items():
            (folder / f"{name}.yaml").write_text(yaml)
            commands.finish(["run", f"{name}.yaml", "--workers", 1, "--out", "runs", *CACHED])
        yield folder, commands


def run_of(place, name, out="runs"):
    return next((place / out / name).iterdir()).relative_to(place)


def run_command(place, out):
    return ["run", "planted.yaml", "--workers", 2, "--out", out, *CACHED]


def compare_command(place, out):
    runs = [run_of(place, name) for name in ("planted", "other")]
    return ["compare", *runs, "--out", f"{out}/compared.csv"]


def transfer_command(place, out):
    one = ["--set", f"capture.sites=[{SITE}]", "--set", "capture.concatenate=[]"]
    return ["transfer", "planted.yaml", "other.yaml", "--out", out, *CACHED, *one]


def apply_command(place, out):
    probe = run_of(place, "planted") / "probes" / SITE / "logistic"
    texts = [part for n in range(50) for part in ("--text", f"The red house {n}")]
    return ["apply", probe, *texts, "--out", f"{out}/scores.csv"]


COMMANDS = {
    "run": run_command,
    "compare": compare_command,
    "transfer": transfer_command,
    "apply": apply_command,
}
# Files that contain times, or are not tables.
TIMED = ("run.json", "report.html", "config.yaml")


def contents(folder):
    """Return the bytes of all tables and predictions in a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "probes" not in path.parts)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in paths
        if not path.name.startswith(".") and path.name not in TIMED
        # They are there only while a run is in progress.
        if path.name != "job.json" and path.suffix != ".lock"
    }


def is_finished(out):
    """Return whether a folder contains a finished run; a partial run is refused."""
    runs = [path for path in out.glob("planted/*") if path.is_dir()]
    try:
        for path in runs:
            FinishedRun(path)
    except MissingError:
        return False
    return bool(runs)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_command_leaves_no_partial_result(place, name, times):
    place, commands = place
    command, out = COMMANDS[name](place, f"{name}-killed"), place / f"{name}-killed"
    whole = place / f"{name}-whole"
    began = time.perf_counter()
    commands.finish(COMMANDS[name](place, whole.name))
    seconds = time.perf_counter() - began
    expected = contents(whole)
    n_partly = n_finished = 0

    def check():
        nonlocal n_partly, n_finished
        found = contents(out)
        assert found.items() <= expected.items()
        finished = is_finished(out) if name == "run" else found == expected
        n_finished += finished
        n_partly += bool(found) and not finished
        if finished:
            assert found == expected
            shutil.rmtree(out)

    n_kills = commands.kill_at_random(command, seconds, times, check=check)
    commands.finish(command)
    assert contents(out) == expected
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]
    sys.stdout.write(
        f"{name}: {times} tried, {n_kills} killed at work, {n_partly} left some whole files, "
        f"{n_finished} were finished; {len(expected)} files have the same bytes in the end\n"
    )
