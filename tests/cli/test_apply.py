"""`probekit apply` on the command line."""

import csv
import json
import re

import pytest


def columns(out):
    header, *rows = [line.split("\t") for line in out.splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_apply_prints_label_and_score_per_text(keep, call):
    keep()
    code, out, errors = call("apply", "probe", "--text", "The keys", "--text", "A dog\t\x1b[2J\n")
    assert code == 0, errors
    first, second = columns(out)
    assert first.keys() == {"number", "label", "score", "text"}
    assert first["text"] == "The keys"
    assert first["label"] == ("yes" if float(first["score"]) > 0 else "no")
    assert second["text"] == "A dog⇥<U+001B>[2J⏎"
    assert "apply:" in errors


def test_apply_prints_label_and_score_per_token(keep, call):
    keep()
    code, out, errors = call("apply", "probe.json", "--text", "The keys\n", "--per", "token")
    assert code == 0, errors
    assert [row["token"] for row in columns(out)] == ["The", "␣keys", "⏎"]
    assert [row["position"] for row in columns(out)] == ["0", "1", "2"]
    assert len({row["score"] for row in columns(out)}) == 3
    assert "trained at: last" in errors


def test_probe_of_words_is_applied_per_token_by_default(keep, call):
    keep(position={"at": "word", "pieces": "last"})
    assert "token" in columns(call("apply", "probe", "--text", "The keys")[1])[0]
    errors = call("apply", "probe", "--text", "The keys", "--out", "scores.csv")[2]
    assert "trained at: word, which is not marked in new texts: each row is one token." in errors
    code, _, errors = call("apply", "probe", "--text", "The keys", "--per", "text")
    assert (code, "--per token" in errors) == (2, True)


def test_multiclass_and_regression_probes_are_printed(keep, call):
    keep("many", ("a", "b", "c"))
    keep("number", ())
    assert columns(call("apply", "many", "--text", "The keys")[1])[0]["label"] in "abc"
    row = columns(call("apply", "number", "--text", "The keys")[1])[0]
    assert row.keys() == {"number", "score", "text"}


def test_texts_are_read_from_files(keep, call, tmp_path):
    keep()
    (tmp_path / "a.csv").write_text("id,said\n1,The keys\n2,A dog\n")
    options = ("--file", "a.csv", "--format", "csv", "--column", "said")
    code, out, errors = call("apply", "probe", *options)
    assert code == 0, errors
    assert [row["text"] for row in columns(out)] == ["The keys", "A dog"]


def test_written_files_are_reported(keep, call, tmp_path):
    keep()
    ask = ("apply", "probe", "--text", "The keys", "--text", "A dog", "--out")
    assert call(*ask, "page.html")[1] == "page.html\n"
    assert "␣" in (tmp_path / "page.html").read_text("utf-8")
    call(*ask, "scores.csv")
    with (tmp_path / "scores.csv").open() as file:
        assert [row["text"] for row in csv.DictReader(file)] == ["The keys", "A dog"]
    call(*ask, "scores.jsonl", "--per", "token")
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert [json.loads(line)["token"] for line in lines] == ["The", " keys", "A", " dog"]


@pytest.fixture
def terminal(call, monkeypatch):
    """A function that replaces stdout by a terminal with these colours."""

    def terminal(colours):
        monkeypatch.delenv("NO_COLOR")
        for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", colours), ("TERM", "xterm")):
            monkeypatch.setenv(name, value)

    return terminal


@pytest.mark.parametrize("per", ["text", "token"])
@pytest.mark.parametrize("classes", [("no", "yes"), ("a", "b", "c"), ()], ids=len)
def test_colour_terminal_shows_coloured_tokens(keep, call, terminal, classes, per):
    keep(classes=classes)
    terminal("truecolor")
    arguments = ("--text", "The keys to\nit \x1b[2J", "--per", per)
    code, out, _ = call("apply", "probe", *arguments)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "\x1b" not in plain
    assert "<U+001B>" in plain
    assert "\x1b[2m1 \x1b[0m" in out  # only the number is dim
    assert "\x1b[2;" not in out
    assert "48;2;" in out
    for name in classes:
        assert f" {name} " in out


def test_terminal_with_few_colours_shows_columns(keep, call, terminal):
    keep(classes=("no", "yes"))
    terminal("")
    code, out, _ = call("apply", "probe", "--text", "The keys")
    assert code == 0
    assert "\x1b" not in out
    assert out.startswith("number\t")


def test_different_model_can_be_allowed_and_is_reported(keep, call):
    keep(weights="other")
    code, out, errors = call("apply", "probe", "--text", "The keys", "--allow-other-model")
    assert code == 0
    assert columns(out)
    assert "is not the model that the probe was fitted on" in errors


def test_an_untested_probe_is_named_as_such_everywhere(keep, call, tmp_path):
    text = ("--text", "The keys")
    commands = {
        "apply": ("apply", "probe", *text),
        "page": ("apply", "probe", *text, "--out", "page.html"),
    }
    for is_tested in (True, False):
        keep(is_tested=is_tested)
        for arguments in commands.values():
            code, _, errors = call(*arguments)
            assert code == 0, errors
            assert ("untested: no held-out rows" in errors) != is_tested
        assert ("untested: no held-out rows" in (tmp_path / "page.html").read_text()) != is_tested
