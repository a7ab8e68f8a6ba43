"""Common mistakes in data files: messages and exit codes; nothing is computed or written."""

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
WITH_SPLIT = {GROUP: "group: group, split: split}"}
NUMBERS = {"probe: {": "probe: {kinds: [{kind: ridge_regression}], "}
WITHOUT_COLUMNS = {"  columns: {text: text, label: label, group: group}\n": ""}


def table(*changes, header="text,label,group,start,end,split"):
    """Return a CSV of 48 rows in 12 groups, with changes (rows, column, value)."""
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
        cells |= {column: value for rows, column, value in changes if row in rows}
        lines.append(",".join(cells.values()))
    return "\n".join(lines) + "\n"


TRAIN, TEST, ALL = range(24), range(24, 48), range(48)
OVERFLOWING = table((ALL, "label", "1.5"), ([2], "label", "1e308"))
TYPOS = table(([0, 16, 28, 40], "label", "pats"))
JSON_LINES = '{"text": "One, two.", "label": "past", "group": "a"}\n' * 2
# A command, changes of the experiment, and the rows.
CASES = {
    "validate stops as run does": ("validate", NUMBERS, OVERFLOWING),
    "one group": ("run", {}, table((ALL, "group", "a"))),
    "one group in train": ("run", WITH_SPLIT, table((TRAIN, "group", "a"))),
    "one group in test": ("run", WITH_SPLIT, table((TEST, "group", "a"))),
    "JSON lines read as CSV": ("run", {}, JSON_LINES),
    "wrong case in a column name": ("run", {"label: label": "label: LABEL"}, table()),
    "no columns": ("run", WITHOUT_COLUMNS, table(header="sentence,tense,group,start,end,split")),
    "bad splits": ("run", WITH_SPLIT, table(([5], "split", "Train"), ([9], "split", "dev"))),
    "a label that is a typo of another": ("validate", {}, TYPOS),
}


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_is_reported_before_any_computation(printed, tmp_path, snapshot, name):
    command, changes, rows = CASES[name]
    text = YAML
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "e.yaml").write_text(text)
    (tmp_path / "rows.csv").write_text(rows)
    assert printed(f"{command} e.yaml") == snapshot
    assert {path.name for path in tmp_path.iterdir()} == {"e.yaml", "rows.csv"}
