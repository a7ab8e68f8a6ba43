"""Common mistakes in data files, with their exit codes and messages."""

from dataclasses import dataclass, field

import pytest

YAML = """\
name: small
model: {source: mini, random_weights: false}
data:
  name: rows
  format: csv
  file: rows.csv
  columns: {text: text, label: label, group: group}
tokens:
  bos: false
  position: {at: last}
capture: {sites: [blocks.0.hook_resid_post]}
probe: {folds: 2, control_draws: 0, description: false, permutations: 0}
"""
GROUP = "group: group}"
WITH_SPANS = {GROUP: "group: group, start: start, end: end}", "at: last": "at: word"}
WITH_SPLIT = {GROUP: "group: group, split: split}"}
NUMBERS = {"probe: {": "probe: {kinds: [{kind: ridge_regression}], "}


def table(*changes, header="text,label,group,start,end,split"):
    """Return a CSV of 48 rows in 12 groups, with changes (row, column, value); row None is all."""
    lines = [header]
    for row in range(48):
        cells = {
            "text": f"The number {row} walks home",
            "label": ("past", "present")[row % 2],
            "group": f"g{row // 4}",
            "start": "4",
            "end": "10",
            "split": "train" if row < 24 else "test",
        }
        cells |= {column: value for at, column, value in changes if at in (row, None)}
        lines.append(",".join(cells.values()))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Mistake:
    """A command line, and parts of the expected message."""

    name: str
    expected: tuple[str, ...]
    yaml: dict[str, str] = field(default_factory=dict)
    rows: str = table()


MISTAKES = [
    Mistake(
        "numbers whose squares overflow",
        ("line 12: ", "rows.csv:4: the label '1e308' is not a number from", "(1 such label)"),
        NUMBERS,
        table((None, "label", "1.5"), (2, "label", "1e308")),
    ),
    Mistake(
        "text labels for a regression",
        (
            "line 12: ",
            "rows.csv:2: the label 'past' is not a number",
            "(48 such labels)",
            "kinds: [{kind: logistic}]",
        ),
        NUMBERS,
    ),
    Mistake(
        "one group for all rows",
        (
            "line 7: all 48 rows are in one group, 'a' (",
            "rows.csv:2, ",
            "rows.csv:4, and 45 more)",
            "remove data.columns.group",
        ),
        rows=table((None, "group", "a")),
    ),
    Mistake(
        "one group for all rows of a split that is given",
        ("line 7: all 48 rows are in one group, 'a'",),
        WITH_SPLIT,
        table((None, "group", "a")),
    ),
    Mistake(
        "one group for all rows of train",
        ("line 7: all rows of train are in one group, 'a' (", "rows.csv:2, ", "and 21 more)"),
        WITH_SPLIT,
        table(*((row, "group", "a") for row in range(24))),
    ),
    Mistake(
        "one group for all rows of test",
        ("line 7: all rows of test are in one group, 'a' (", "rows.csv:26, ", "too few for folds"),
        WITH_SPLIT,
        table(*((row, "group", "a") for row in range(24, 48))),
    ),
    Mistake(
        "JSON lines read as CSV",
        ("line 7: ", "rows.csv:1: no column 'text'."),
        rows='{"text": "One, two.", "label": "past", "group": "a"}\n' * 2,
    ),
    Mistake(
        "wrong case in a column name",
        ("line 7: ", "rows.csv:1: no column 'LABEL'. Nearest: label."),
        {"label: label": "label: LABEL"},
    ),
    Mistake(
        "no columns at all",
        (
            "line 3: ",
            "rows.csv:1: no column 'text'. Allowed: end, group, sentence, split, start",
            "`columns: {text: NAME, label: NAME}`",
        ),
        {"  columns: {text: text, label: label, group: group}\n": ""},
        table(header="sentence,tense,group,start,end,split"),
    ),
    Mistake(
        "a bad split value",
        ("rows.csv:7: the split is 'Train'. Allowed: test, train. 2 rows",),
        WITH_SPLIT,
        table((5, "split", "Train"), (9, "split", "dev")),
    ),
    Mistake(
        "a text that is too long",
        (
            "rows.csv:7: the text has 2,002 tokens, but the context has 256 (1 text too long)",
            "`truncate` or `skip`",
        ),
        rows=table((5, "text", "word " * 2000)),
    ),
    Mistake(
        "an empty span cell",
        ("rows.csv:7: column 'end' is empty. Write an integer",),
        WITH_SPANS,
        table((5, "end", "")),
    ),
    Mistake(
        "a span cell that is no number",
        ("rows.csv:7: column 'start' has the value 'four', which is not a position",),
        WITH_SPANS,
        table((5, "start", "four")),
    ),
    Mistake(
        "a short row",
        ("rows.csv:50: the row has 1 cell, the header has 6. Put cells with a delimiter in quo",),
        rows=table() + "The one\n",
    ),
]


@pytest.mark.parametrize("command", [("cache", "ls"), ("run", "e.yaml")])
def test_cache_root_that_is_a_file_is_refused(probekit, tmp_path, command):
    write(tmp_path, Mistake("", ()))
    (tmp_path / "cache").write_text("a file")
    code, output = probekit(*command)
    assert code == 2
    assert "PROBEKIT_CACHE is" in output
    assert "is a file, not a folder" in output


def write(folder, mistake):
    text = YAML
    for old, new in mistake.yaml.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "e.yaml").write_text(text)
    (folder / "rows.csv").write_text(mistake.rows)


@pytest.mark.parametrize(
    ("command", "mistake"),
    [("validate", MISTAKES[0]), *(("run", mistake) for mistake in MISTAKES)],
    ids=lambda given: getattr(given, "name", given),
)
def test_each_error_is_reported_before_any_computation(probekit, tmp_path, mistake, command):
    write(tmp_path, mistake)
    code, output = probekit(command, "e.yaml")
    assert code == 2
    assert not [fragment for fragment in mistake.expected if fragment not in output], output
    assert not {path.name for path in tmp_path.iterdir()} - {"e.yaml", "rows.csv"}


def test_validate_warns_of_possible_errors(probekit, tmp_path):
    typos = table(*((row, "label", "pats") for row in (0, 16, 28, 40)))
    write(tmp_path, Mistake("a label that is a typo of another", (), rows=typos))
    code, output = probekit("validate", "e.yaml")
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if "The label 'pats' (4 rows: " in line]
    assert line.startswith("warning: ")
    assert "rows.csv:2, " in line
    assert ", and 1 more) is one letter away from 'past' (20 rows)" in line
