"""Studies: captures are shared, cells run alone or side by side, resume, and fail alone."""

import json
import shutil

import pytest

from probekit import workers
from probekit.activations.capture import Work
from probekit.activations.upkeep import caches_in
from probekit.errors import ConfigError, MissingError
from probekit.experiment.loader import load_any
from probekit.pipeline.experiment import run_study as study_run
from probekit.pipeline.experiment.plan import Machines, described_plan
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.run_job import work_on
from probekit.pipeline.experiment.run_study import plan_study
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.measure import run_folder
from probekit.results.record import STARTED
from probekit.results.study import StudyResult
from probekit.results.verdict import RIVALS
from tests.pipeline.planted import Planted, helped
from tests.pipeline.scale import Heard
from tests.pipeline.texts import text_of

FOUR = {"data": ["rows.csv"], "split.seed": [0, 1], "probe.C": [[0.01], [1]]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The planted rows, a study of them, and its result in one process."""
    place = Planted(tmp_path_factory.mktemp("study"))
    (place.folder / "small.yaml").write_text(text_of("study.yaml"))
    (place.folder / "published.csv").write_text("task,score\nrows,0.9\n")
    return place


def start(place, out, **options):
    options = {"workers": 1, "progress": False, "page": False, "cache_root": place.cache} | options
    return run(place.folder / "small.yaml", out=out, **options)


@pytest.fixture(scope="module")
def finished(place):
    return start(place, place.folder / "alone")


def content(result):
    """The bytes of both tables of the study, and of the tables of all cells."""
    tables = [result.folder / name for name in ("study.csv", "study_rivals.csv")]
    paths = [*tables, *sorted(result.folder.rglob("results.csv"))]
    return {path.relative_to(result.folder): path.read_bytes() for path in paths}


def test_a_row_has_the_scores_of_the_run_of_its_cell(finished):
    table = finished.table.set_index("cell")
    assert table.index.tolist() == [
        f"{name}-C-{C}" for name in ("mixed", "rows", "nouns") for C in ("0.01", "1")
    ]
    row = table.loc["rows-C-1"]
    verdict = json.loads((finished.folder / row["folder"] / "run.json").read_text())["verdict"]
    for name, value in {"score": "value", "ci_low": "ci_low", "site": "site", "n": "n"}.items():
        assert row[name] == verdict["score"][value]
    rivals = finished.rivals[finished.rivals["cell"] == "rows-C-1"].set_index("rival")
    assert rivals.index.tolist() == [name for name in verdict["rivals"] if name in RIVALS]
    for name in ("value", "difference", "ci_low", "ci_high"):
        assert rivals.loc["bag_of_words", name] == verdict["rivals"]["bag_of_words"][name]
    assert rivals.loc["majority", "is_constant"]
    assert row["probe.C"] == "[1]"
    assert row["score"] > 0.9
    assert row["verdict"] == "too few groups"  # three of twelve are tested
    assert table["published"].dropna().to_dict() == {"rows-C-0.01": 0.9, "rows-C-1": 0.9}
    assert table.loc["rows-C-1", "repeated"] == 0


def test_a_cell_that_fails_is_reported_and_the_others_are_run(place, finished, call):
    # Their two groups are fewer than the folds.
    assert finished.failed["cell"].tolist() == ["nouns-C-0.01", "nouns-C-1"]
    assert finished.table[finished.table["error"] == ""]["score"].notna().all()
    out = ["--out", place.folder / "alone", "--cache", place.cache, "--workers", 1, "--no-page"]
    ended = call("run", place.folder / "small.yaml", *out)
    assert (ended.code, ended.stderr.count("Error in cell ")) == (1, 1)
    assert "The error in cell nouns-C-0.01 also occurs in 1 other cell: nouns-C-1." in ended.stderr
    assert ended.stdout.endswith("study.csv\n")


def test_one_data_set_at_four_settings_is_captured_once(place, tmp_path, monkeypatch):
    computed, compute = [], Work.compute
    monkeypatch.setattr(Work, "compute", lambda *args: computed.append(compute(*args)))
    monkeypatch.chdir(place.folder)
    cache = tmp_path / "cache"
    found = start(place, tmp_path, over=FOUR, cache_root=cache).table["score"]
    assert found.notna().tolist() == [True] * 4
    assert (len(computed), len(caches_in(cache))) == (1, 1)


def test_the_pages_of_the_study_and_its_cells_are_written_unless_refused(
    place, tmp_path, monkeypatch
):
    monkeypatch.chdir(place.folder)
    result = start(place, tmp_path, over={"data": ["rows.csv"]}, page=True)
    assert "cells/rows/" in result.report.read_text("utf-8")
    assert (result.folder / result.table.loc[0, "folder"] / "report.html").exists()
    assert start(place, tmp_path, over={"data": ["rows.csv"]}).report is None


def test_cells_side_by_side_have_the_same_tables(place, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "START_UP", -1.0)
    heard = Heard()
    assert content(start(place, tmp_path, workers=2, watcher=heard)) == content(finished)
    assert heard.steps[-1] == ("cells", 6, 6)


def test_too_little_memory_for_cells_side_by_side_runs_them_in_turn(
    place, finished, tmp_path, monkeypatch
):
    monkeypatch.setattr(study_run, "available_memory", lambda: 1e9)
    monkeypatch.setattr(study_run, "parallel_map", None)  # would fail if it were called
    assert content(start(place, tmp_path, workers=4)) == content(finished)


def test_an_interrupted_study_resumes_to_the_same_tables(place, finished, tmp_path, monkeypatch):
    heard = Heard()

    def interrupt(cell, **options):
        if cell.name == "rows-C-0.01":
            raise KeyboardInterrupt
        return row(cell, **options)

    row = study_run._row
    with monkeypatch.context() as patch:
        patch.setattr(study_run, "_row", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(place, tmp_path)
    with pytest.raises(MissingError, match="resume it"):
        StudyResult(tmp_path / "small")
    cell = tmp_path / "small" / "cells" / "rows-C-0.01" / "key"
    cell.mkdir(parents=True)
    (cell / STARTED).touch()
    told = Heard()
    assert list(work_on(tmp_path, watcher=told)) == []
    (message,) = told.messages
    assert message.startswith(f"{tmp_path / 'small'} has not finished, and no process runs it: ")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")}
    assert len(before) == 2
    result = start(place, tmp_path, watcher=heard)
    assert content(result) == content(finished)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    again = (result.folder / "study.csv").read_bytes()
    shutil.rmtree(result.folder / "cells" / "rows-C-1")
    assert (start(place, tmp_path).folder / "study.csv").read_bytes() == again


def test_workers_do_the_tasks_of_each_cell(place, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "PAUSE", 0.05)
    shared, (done,) = helped(lambda: start(place, tmp_path, workers=0), tmp_path)
    assert content(shared) == content(finished)
    assert len(done) == 4 * 3  # baselines and two sites of each cell that does not fail


def test_a_study_takes_no_rows_in_memory_and_one_process_at_a_time(place, refused):
    refused(start, place, place.folder, data=[{"text": "a", "label": "b"}])
    with pytest.raises(ConfigError, match="workers is -1"):
        start(place, place.folder, workers=-1)


def test_validate_and_plan_have_cells_time_and_bytes(place, tmp_path, monkeypatch):
    report = validate(place.folder / "small.yaml")
    assert not report.ok
    lines = str(report).splitlines()
    (error,) = (line for line in lines if line.startswith("Error: "))
    assert error.startswith("Error: nouns-C-0.01: ")
    assert error.endswith(" Also in 1 other cell: nouns-C-1.")
    assert lines[-2].startswith("6 cells, ")
    monkeypatch.chdir(place.folder)
    four = load_any(place.folder / "small.yaml", ["over.data=[rows.csv]"])
    one = load_any(place.folder / "small.yaml", ["over={data: [rows.csv], probe.C: [[1]]}"])
    in_python = validate(one.cells[0].experiment, over={"probe.C": [[0.01], [1]]})
    assert in_python.n_cells == 2
    assert in_python.bytes == validate(one).bytes > 0
    numbers, alone = (plan_study(one, Machines(cores=1)) for one in (four, one))
    assert (numbers["cells"], numbers["tasks"], numbers["bytes"]) == (2, 6, alone["bytes"])
    assert numbers["hours"]["probing"] > alone["hours"]["probing"]
    assert described_plan(numbers).startswith("cells        2\n")


def test_validate_has_a_line_for_each_cell_and_one_for_a_warning_of_several(place):
    study = load_any(place.folder / "small.yaml")
    lines = str(validate(study)).splitlines()
    shared = [line for line in lines if " of 6 cells (" in line]
    n_warnings = 0
    for cell in study.cells:
        report = validate(study, cell=cell.name)
        (own,) = (line for line in lines if line.startswith(f"{cell.name}: "))
        counts = f"{report.n_rows} rows, {report.n_groups} groups" if report.n_rows else "error"
        assert own.startswith(f"{cell.name}: {counts}")
        for one in report.findings:
            if one.level == "warning":
                text = f"warning {one.code}: {one.message.split('. ')[0]}"
                n_warnings += 1
                assert (text in own) != any(text in line and cell.name in line for line in shared)
    assert n_warnings > len(shared) > 0


def test_a_column_that_no_file_has_is_one_error(place):
    misspelt = load_any(place.folder / "small.yaml", ["data.columns.text=texxt"])
    error, of_another_line = (one.message for one in validate(misspelt).findings)
    assert error.count("mixed-C-0.01") == 1
    assert error.endswith(
        "mixed.csv:1: no column 'texxt'. Nearest: text. Also in 3 other cells: mixed-C-1, "
        "rows-C-0.01, rows-C-1."
    )
    assert of_another_line.endswith("Also in 1 other cell: nouns-C-1.")
