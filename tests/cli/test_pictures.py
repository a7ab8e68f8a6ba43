"""`lens`, `attribution` and `heads`: tables, files and exit codes."""

import re

import pandas as pd
import pytest

TEXT = "The keys to the old cabinet"


def test_lens_prints_every_layer_and_writes_the_rows(call, tmp_path):
    (tmp_path / "more.txt").write_text("A door\n")
    texts = ("--text", TEXT, "--file", "more.txt")
    shown = ("--top-k", 2, "--position", 1)
    code, out, err = call("lens", "--model", "mini", *texts, *shown, "--out", "lens.csv")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "1 at [1] ␣keys: The keys"
    assert [line.split()[0] for line in lines[2:9]] == ["embed", *"012345"]
    assert "2 at [1] ␣door: A door" in lines
    assert lines[-1] == "lens.csv"
    rows = pd.read_csv("lens.csv")
    assert set(rows["prompt"]) == {1, 2}
    shown = rows[(rows["prompt"] == 1) & (rows["position"] == 1)].iloc[-1]
    assert f"{shown['probability_2']:.3f}" in lines[8]


def test_attribution_prints_parts_that_sum_to_the_logit(call):
    options = ("--text", TEXT, "--token", " the", "--minus", " his", "--out", "parts.csv")
    code, out, err = call("attribution", "--model", "mini", *options)
    assert code == 0, err
    *table, answer, detail, path = out.splitlines()
    assert path == "parts.csv"
    shown = [re.findall(r"[+−]?\d+\.\d\d", line)[-1] for line in table[1:]]
    numbers = [float(number.replace("−", "-")) for number in shown]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.005 * len(numbers))
    assert table[-1].startswith("the logit of ␣the minus that of ␣his")
    assert table[-1].endswith("100 %")
    assert pd.read_csv(path)["value"].sum() == pytest.approx(numbers[-1], abs=0.006)
    carries = r"carr(y|ies) .* of the logit difference of .* other \d+ of \d+ components"
    assert re.search(carries, answer)
    assert detail.startswith("At position ")


def test_heads_prints_the_highest_of_each_score(call):
    code, out, err = call("heads", "--model", "mini", "--random-repeats", 2, "--length", 20)
    assert code == 0, err
    assert "On 2 sequences of 20 random tokens, each repeated once, seed 0" in out
    for score in ("previous token", "duplicate token", "induction", "first token", "entropy"):
        assert f"\n{score} " in out
    assert "known" not in out
    code, out, _ = call("heads", "--model", "mini", "--text", "One two")
    assert code == 0
    assert "not defined for any token" in out


@pytest.mark.parametrize(
    "command",
    [
        ("lens", "--text", TEXT),
        ("attribution", "--text", TEXT, "--minus-mean"),
        ("heads", "--text", TEXT, "--file", "more.txt"),
    ],
    ids=lambda command: command[0],
)
def test_out_writes_a_page(call, tmp_path, command):
    (tmp_path / "more.txt").write_text("The door and the door\n")
    name, *others = command
    code, out, err = call(name, "--model", "mini", *others, "--out", "pages/page.html")
    assert code == 0, err
    assert out.splitlines()[-1] == "pages/page.html"
    assert "<title>" in (tmp_path / "pages" / "page.html").read_text("utf-8")
