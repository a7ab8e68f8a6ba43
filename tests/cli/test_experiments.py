"""The bundled experiments by name, and the start of a new one."""

import pytest

from probekit.experiment.bundled import bundled_files


def test_all_bundled_experiments_are_listed_with_questions_and_needs(call):
    done = call("experiments")
    assert done.code == 0
    header, *rows, how_to_run, how_to_start = done.stdout.splitlines()
    assert header.split() == ["name", "question", "needs"]
    assert {row.split()[0] for row in rows} == bundled_files().keys()
    (quickstart,) = (row for row in rows if row.startswith("quickstart "))
    assert "Can the number of the subject be decoded" in quickstart
    assert "probekit run capitals" in how_to_run
    assert "probekit init my_question" in how_to_start


def test_init_writes_three_files_that_validate(call, tmp_path):
    done = call("init", "my_question")
    assert done.code == 0
    names = ["experiment.schema.json", "my_question.csv", "my_question.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert done.stdout.endswith(
        "Next:\n  probekit validate my_question.yaml\n  probekit run my_question.yaml\n"
    )
    validated = call("validate", "my_question.yaml")
    assert validated.stdout.splitlines()[-1] == "ok", validated.stderr
    assert "warning" not in validated.stdout


def test_init_overwrites_no_file(call, tmp_path):
    (tmp_path / "mine.csv").write_text("text,label\n")
    done = call("init", "mine")
    assert done.code == 2
    assert "mine.csv exists already, and no file is overwritten. Give another name" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
    assert (tmp_path / "mine.csv").read_text() == "text,label\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "quickstrt"], 3, "Nearest: quickstart. `probekit experiments` lists"),
        (["validate", "quickstrt"], 3, "Nearest: quickstart."),
        (["run", "quickstart.yaml"], 3, "give its name alone: quickstart"),
        (["cache", "quickstrt"], 2, "no bundled experiment quickstrt, and no such command. Near"),
        (["run", "pretrain_mini"], 2, "Run it with `probekit pretrain"),
        (["pretrain", "pretrain_min"], 3, "Nearest: pretrain_mini."),
        (["init", "a question"], 2, "try 'a_question'"),
        (["init", "nul"], 2, "try 'my_nul'"),
        (["init", "occupied/mine"], 1, "Cannot write occupied/mine.yaml"),
    ],
)
def test_a_mistaken_name_is_answered(call, tmp_path, arguments, code, message):
    (tmp_path / "occupied").write_text("a file, not a folder")
    done = call(*arguments)
    assert done.code == code, done.stderr
    assert message in done.stderr


def test_the_plan_of_a_bundled_experiment(call):
    done = call("cache", "plan", "quickstart", "--device", "cpu")
    assert done.code == 0, done.stderr
    assert "4,320 at each of 8 sites" in done.stdout


def test_a_capture_accepts_a_bundled_name(call, tmp_path):
    done = call("cache", "capitals", "--workers", "0", "--cache", tmp_path / "caches")
    assert done.code == 0, done.stderr
    assert "880 rows" in done.stdout
