"""What a user should know of the data is found, with its numbers; what is fine raises no alarm."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.data.checks import _spans_of_units, check_dataset
from probekit.data.examples import Dataset, Example
from probekit.data.readers import read_dataset
from probekit.data.splits import Split, without_repeated
from probekit.data.table import Columns
from tests.stored import changed, each_row

N_TRAIN = 40


def changed_rows(n, changes):
    """Rows that are balanced, distinct, of equal length, and in groups of two; then changed."""
    named = ((i, f"text {i:03}", f"group {i // 2}", f"row {i}") for i in range(n))
    rows = [Example(text, "xy"[i % 2], group, id) for i, text, group, id in named]
    for row, change in (changes or {}).items():
        rows[row] = replace(rows[row], **change)
    return tuple(rows)


def found(changes=None, *, n_test=40, n_folds=0, **facts):
    """What is found, as text, when some rows are changed; in folds, each n-th group is tested."""
    dataset = Dataset("tiny", changed_rows(N_TRAIN + n_test, changes), **facts)
    fold = np.arange(len(dataset)) // 2 % max(n_folds, 1)
    splits = [Split(np.arange(N_TRAIN), np.arange(N_TRAIN, len(dataset)))]
    if n_folds:
        tested = [fold == k for k in range(n_folds)]
        splits = [Split(np.flatnonzero(~test), np.flatnonzero(test)) for test in tested]
    return text_of(check_dataset(dataset, splits))


def text_of(findings):
    return "\n".join(f"{one.level}, {one.code}: {one.message}" for one in findings)


def labelled(label, *rows):
    return {row: {"label": label} for row in rows}


def marked(text, *span):
    return {3: {"text": text, "span": span}}


def copies(span, other):
    """The text of row 0 again, with another label."""
    return {0: {"span": span}, 51: {"text": "text 000", "span": other}}


# "y" is one row in eight and always long; so is every second "x": accuracy (1 + 4 / 7) / 2.
RARE = {i: {"label": "y" if i % 8 == 0 else "x"} for i in range(80)}
RARE |= {i: RARE[i] | {"text": f"longer text {i:03}"} for i in range(0, 80, 2)}
PART = {n: {"text": "don't go", "span": (0, 2)} for n in range(0, 80, 2)}
CHANGES = {
    "a group on both sides": {50: {"group": "group 3"}},
    "a label only in test": labelled("z", 50),
    "a label only in train, where it is rare": labelled("z", 3),
    "similar groups": {3: {"group": "Group 1"}},
    "missing groups": {3: {"group": "nan"}, 5: {"group": "nan"}},
    "a text twice in train": {3: {"text": "text 001"}},
    "a text twice in test": {53: {"text": "text 051"}},
    "texts on both sides": {51: {"text": "text 001"}, 53: {"text": "text 001"}},
    "similar labels": labelled("Y ", 3),
    "a NUL character": {3: {"text": "a\0b"}},
    "a text with two labels": {51: {"text": "text 000"}},
    "imbalance": labelled("x", *range(14, 40)),
    "no contradiction and no duplicate at another span": copies((0, 4), (5, 8)),
    "contradiction and duplicate at one span": copies((0, 4), (0, 4)),
    "a label in few test groups": labelled("z", 4, 6, 50, 52, 54, 60, 61),
    "a label in enough test groups": labelled("z", 4, 6, 50, 52, 54, 60, 61, 70, 72),
    "a label predicted by length": {i: {"text": f"longer {i:03}"} for i in range(1, 80, 2)},
    "a label predicted by the length of spans": {i: {"span": (0, 3 + i % 2)} for i in range(80)},
    "a rare label counts as much as a frequent one": RARE,
    "a likely typo": labelled("past", *range(80)) | labelled("pats", *range(0, 80, 10)),
    "span of a word": marked("The keys", 4, 8),
    "span that begins inside a word": marked("The keys", 5, 8),
    "span that ends inside a word": marked("The keys", 4, 7),
    "span in parentheses": marked("(keys)", 1, 5),
    "span inside a number": marked("route 66", 6, 7),
    "span without spaces between words": marked("東京に行く", 0, 2),
    "span that cuts off an accent": marked("cafe\u0301 closed", 0, 4),
    "span before a letter": marked("cafe\u0301s", 0, 5),
    "span with an accent": marked("cafe\u0301 closed", 0, 5),
}


@pytest.mark.parametrize("case", CHANGES)
def test_problems_are_reported_with_numbers(case, snapshot):
    assert changed(found(), found(CHANGES[case])) == snapshot


# The same few texts in folds 1 to 3; the texts of fold 0 are new.
IN_LATER = {n: {"text": f"text {n // 8:03}-{n % 2}"} for n in range(80) if n // 2 % 4 > 0}
OF_FOLDS = {
    "a label tested in one fold only": labelled("z", 6, 7),
    "a label that one fold does not test": labelled(
        "x", *(n for n in range(80) if n // 2 % 4 == 2)
    ),
    "a label that is rare in some folds": labelled("z", 6, 14, 22, 2, 10),
    "a group on both sides": {70: {"group": "group 34"}},
    "texts that repeat only in later folds": IN_LATER,
}


@pytest.mark.parametrize("case", OF_FOLDS)
def test_all_outer_folds_are_checked(case, snapshot):
    assert changed(found(n_folds=4), found(OF_FOLDS[case], n_folds=4)) == snapshot


@each_row("changes, facts")
def test_all_findings_in_their_order(changes, facts, snapshot):
    assert found(changes, **facts) == snapshot


def test_contradictions_of_copies_that_are_dropped_are_reported_by_row(snapshot):
    changes = {51: {"text": "text 000"}, 53: {"text": "text 002"}, 55: {"text": "text 002"}}
    dataset = Dataset("tiny", changed_rows(80, changes))
    whole = Split(np.arange(N_TRAIN), np.arange(N_TRAIN, 80))
    for split in (whole, without_repeated(whole, dataset)):
        (message,) = [one for one in check_dataset(dataset, [split]) if "contra" in one.code]
        assert text_of([message]) == snapshot(name="of both splits")


def test_a_missing_group_column_is_reported_once_with_a_remedy(tmp_path, snapshot):
    path = tmp_path / "rows.csv"
    path.write_text("text,label,name\n" + "".join(f"t{n},{n % 2},{n}\n" for n in range(8)))
    split = Split(train=np.arange(6), test=np.array([6, 7]))
    texts = []
    for group in ("name", None):
        dataset = read_dataset(path, format="csv", columns=Columns(group=group))
        texts.append(text_of(check_dataset(dataset.select(range(8)), [split])))
    assert changed(*texts) == snapshot


CHINESE = [
    ("我喜欢北京烤鸭", "北京"),
    ("\U0001f600我喜欢北京烤鸭", "北京"),
    ("今天天气很好", "天气"),
]
THAI = [("ฉันรักแมวมาก", "แมว"), ("\U0001f408ฉันรักแมวมาก ๆ", "แมว")]
LONG = [(3 * "我喜欢北京烤鸭很多年了", "北京"), (4 * "今天天气很好呀", "天气")]


def marked_in(rows, encoding):
    """Rows whose span counts the units of an encoding; characters are those of UTF-32."""
    size, examples = len("a".encode(encoding)), []
    for number, (text, word) in enumerate(rows):
        ends = text.index(word), text.index(word) + len(word)
        start, end = (len(text[:at].encode(encoding)) // size for at in ends)
        examples.append(Example(text, "x", f"g{number}", f"row {number}", (start, end)))
    return Dataset("rows", tuple(examples))


@pytest.mark.parametrize(
    ("rows", "encoding"),
    [(CHINESE, "utf-16-le"), (THAI, "utf-16-le"), (CHINESE[1:2], "utf-16-le"), (LONG, "utf-8")],
)
def test_spans_that_count_other_units_are_named_without_spaces_between_words(rows, encoding):
    (finding,) = _spans_of_units(marked_in(rows, encoding))
    units = {"utf-16-le": "code units of UTF-16", "utf-8": "bytes"}[encoding]
    assert f" is {rows[-1 if rows is THAI else 0][1]!r} in {units}." in finding.message
    assert not [*_spans_of_units(marked_in(rows, "utf-32-le"))] or len(rows) == 1
