"""What a user should know of the data is found, with its numbers; what is fine raises no alarm."""

import re
from dataclasses import replace

import numpy as np
import pytest

from probekit.data.checks import check_dataset
from probekit.data.examples import Dataset, Example
from probekit.data.readers import read_dataset
from probekit.data.splits import Split, without_repeated
from probekit.data.table import TableColumns

N_TRAIN = 40


def changed_rows(n, changes):
    """Rows that are balanced, distinct, of equal length, and in groups of two; then changed."""
    rows = [
        Example(f"text {i:03}", "xy"[i % 2], group=f"group {i // 2}", id=f"row {i}")
        for i in range(n)
    ]
    for row, change in (changes or {}).items():
        rows[row] = replace(rows[row], **change)
    return tuple(rows)


def findings(changes=None, *, n_test=40, n_folds=0, **facts):
    """What is found, by code, when some rows are changed; in folds, each n-th group is tested."""
    dataset = Dataset("tiny", changed_rows(N_TRAIN + n_test, changes), **facts)
    fold = np.arange(len(dataset)) // 2 % max(n_folds, 1)
    splits = [Split(np.arange(N_TRAIN), np.arange(N_TRAIN, len(dataset)))]
    if n_folds:
        tested = [fold == k for k in range(n_folds)]
        splits = [Split(np.flatnonzero(~test), np.flatnonzero(test)) for test in tested]
    found = check_dataset(dataset, splits)
    return {finding.code: (finding.level, finding.message) for finding in found}


def test_good_data_give_only_counts():
    found = findings()
    assert {level for level, _ in found.values()} == {"info"}
    assert set(found) == {"train-counts", "test-counts", "length"}
    assert found["train-counts"][1] == (
        "train: 40 examples, 20 groups, 2 labels: x 20 (50.0%), y 20 (50.0%)."
    )
    assert "0.500 in test (chance 0.500)" in found["length"][1]


def test_notes_of_the_reader_are_passed_on():
    assert findings(notes=("words left out: 3",))["reader"] == ("info", "words left out: 3.")


@pytest.mark.parametrize(
    ("changes", "code", "level", "message"),
    [
        ({50: {"group": "group 3"}}, "crossing-groups", "error", "^1 group on both .* 'group 3'"),
        ({50: {"label": "z"}}, "missing-from-train", "error", "does not occur in train: z"),
        ({3: {"label": "z"}}, "missing-from-test", "warning", "does not occur in test: z"),
        ({3: {"group": "Group 1"}}, "similar-groups", "warning", "differ only in case"),
        ({3: {"group": "nan"}, 5: {"group": "nan"}}, "missing-groups", "warning", "^2 rows"),
        ({3: {"text": "text 001"}}, "duplicates-in-train", "warning", "1 of 40 examples in train"),
        ({53: {"text": "text 051"}}, "duplicates-in-test", "warning", "1 of 40 examples in test"),
        (
            {51: {"text": "text 001"}, 53: {"text": "text 001"}},
            "duplicates-across",
            "warning",
            "2 of 40 examples in test .2 of 40 texts",
        ),
        ({3: {"label": "Y "}}, "similar-labels", "warning", "differ only in case"),
        ({3: {"text": "a\0b"}}, "nul-characters", "warning", r"\(row 3\); .* 1, in 'a\\x00b'"),
        ({3: {"label": "z"}}, "rare-labels", "warning", "^1 label with fewer than 5 .* train: z"),
        (
            {51: {"text": "text 000"}},
            "contradictions",
            "warning",
            "1 text or span has .*'text 000' is 'x' in row 0, 'y' in row 51. Correct",
        ),
        (
            {i: {"label": "x"} for i in range(14, 40)},
            "imbalance",
            "info",
            "33 examples of 'x' and 7 .*accuracy of 0.82: set `probe.metric` to balanced_accuracy "
            "or, to detect 'y', auprc",
        ),
    ],
)
def test_problems_are_reported_with_numbers(changes, code, level, message):
    found_level, found_message = findings(changes)[code]
    assert found_level == level
    assert re.search(message, found_message)


def test_contradictions_of_copies_that_are_dropped_are_reported_by_row():
    changes = {51: {"text": "text 000"}, 53: {"text": "text 002"}, 55: {"text": "text 002"}}
    dataset = Dataset("tiny", changed_rows(80, changes))
    whole = Split(np.arange(N_TRAIN), np.arange(N_TRAIN, 80))
    for split in (whole, without_repeated(whole, dataset)):
        found = {one.code: one.message for one in check_dataset(dataset, [split])}
        assert found["contradictions"].startswith(
            "2 texts or spans have examples with different labels: 'text 000' is 'x' in row 0, 'y' "
            "in row 51; 'text 002' is 'x' in row 2, 'y' in row 53. Correct"
        )


def test_copies_of_a_text_contradict_at_the_same_word_only():
    changes = {0: {"span": (0, 4)}, 51: {"text": "text 000", "span": (5, 8)}}
    assert "contradictions" not in findings(changes)
    changes[51]["span"] = (0, 4)
    message = findings(changes)["contradictions"][1]
    assert "'text' at 0 to 4 of a text is 'x' in row 0, 'y' in row 51" in message


def test_the_same_text_at_another_span_is_no_duplicate():
    changes = {0: {"span": (0, 4)}, 50: {"text": "text 000", "span": (5, 8)}}
    assert not [code for code in findings(changes) if code.startswith("duplicates")]
    changes[50]["span"] = (0, 4)
    assert "duplicates-across" in findings(changes)


def test_few_test_groups_are_reported():
    level, message = findings(n_test=38)["few-groups"]
    assert level == "warning"
    assert "Only 19 test groups: intervals over fewer than 20 groups are approximate" in message
    assert "few-groups" not in findings(n_test=40)


def test_a_label_in_few_test_groups_is_reported_with_their_number():
    rare = {i: {"label": "z"} for i in (4, 6, 50, 52, 54, 60, 61)}
    level, message = findings(rare)["few-groups-of-label"]
    assert level == "warning"
    assert message.startswith("1 label in fewer than 6 test groups: 'z' (4).")
    assert "'x'" not in message
    frequent = rare | {i: {"label": "z"} for i in (70, 72)}
    assert "few-groups-of-label" not in findings(frequent)


def test_a_label_predicted_by_length_is_reported():
    longer = {i: {"text": f"longer text {i:03}"} for i in range(1, 80, 2)}
    level, message = findings(longer)["length"]
    assert level == "warning"
    assert "balanced accuracy of 1.000 in test (chance 0.500)" in message


def test_the_length_of_a_marked_word_is_that_of_its_span():
    marked = {i: {"span": (0, 3 + i % 2)} for i in range(80)}
    assert findings(marked)["length"][0] == "warning"


def test_a_rare_label_counts_as_much_as_a_frequent_one():
    # "y" is one row in eight and always long; so is every second "x".
    changes = {i: {"label": "y" if i % 8 == 0 else "x"} for i in range(80)}
    for i in range(0, 80, 2):
        changes[i]["text"] = f"longer text {i:03}"
    accuracy = (1 + 4 / 7) / 2
    assert f"balanced accuracy of {accuracy:.3f} in test" in findings(changes)["length"][1]


def test_errors_come_first():
    found = findings({65: {"label": "z", "text": "text 001"}}, n_test=30)
    levels = [level for level, _ in found.values()]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert set(levels) == {"error", "warning", "info"}


def test_a_missing_group_column_is_reported_once_with_a_remedy(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label,name\n" + "".join(f"t{n},{n % 2},{n}\n" for n in range(8)))
    split = Split(train=np.arange(6), test=np.array([6, 7]))
    found = {}
    for group in (None, "name"):
        dataset = read_dataset(path, format="csv", columns=TableColumns(group=group))
        selected = dataset.select(range(8))
        found[group] = [f for f in check_dataset(selected, [split]) if f.code == "no-groups"]
    ((warning,), none) = found[None], found["name"]
    assert (warning.level, none) == ("warning", [])
    assert "Set data.columns.group" in warning.message
    assert "data.columns.group" in warning.message


@pytest.mark.parametrize(
    ("label", "other", "every", "is_told"),
    [
        ("pats", "past", 10, True),
        ("singular", "singulars", 10, True),
        ("negatve", "negative", 10, True),
        ("neutrel", "neutral", 10, True),
        ("pats", "past", 3, False),  # not rare enough
        ("csubj", "nsubj", 10, False),  # another first letter
        ("ADJ", "ADV", 10, False),  # tags are short
        ("class1", "class2", 10, False),  # numbers
        ("PRON", "PROPN", 10, False),  # tags in capitals
        ("NEGATVE", "NEGATIVE", 10, True),
        ("past", "present", 10, False),
    ],
)
def test_a_rare_label_that_is_one_letter_off_is_a_likely_typo(label, other, every, is_told):
    changes = {row: {"label": other if row % every else label} for row in range(80)}
    found = findings(changes).get("misspelt-labels")
    assert (found is not None) == is_told
    if found:
        assert found[0] == "warning"
        assert f"{label!r} (8 rows: row 0, row 10, row 20, and 5 more)" in found[1]
        assert f"away from {other!r} (72 rows)" in found[1]


@pytest.mark.parametrize(
    ("text", "span", "is_told"),
    [
        ("The keys", (4, 8), False),
        ("The keys", (5, 8), True),
        ("The keys", (4, 7), True),
        ("(keys)", (1, 5), False),
        ("route 66", (6, 7), True),
        ("東京に行く", (0, 2), False),  # no spaces between words
        ("cafe\u0301 closed", (0, 4), True),  # the accent is cut off
        ("cafe\u0301s", (0, 5), True),
        ("cafe\u0301 closed", (0, 5), False),
    ],
)
def test_a_span_inside_a_word_is_reported(text, span, is_told):
    found = findings({3: {"text": text, "span": span}})
    assert ("spans-inside-words" in found) == is_told


@pytest.mark.parametrize("marks_words", [True, False])
def test_words_of_a_treebank_may_be_parts_of_words(marks_words):
    part = {n: {"text": "don't go", "span": (0, 2)} for n in range(0, 80, 2)}
    found = findings(part, marks_words=marks_words)
    assert ("spans-inside-words" in found) != marks_words


def test_good_folds_give_only_counts():
    found = findings(n_folds=4)
    assert {level for level, _ in found.values()} == {"info"}
    assert found["all-folds-counts"][1] == (
        "all folds: 80 examples, 40 groups, 2 labels: x 40 (50.0%), y 40 (50.0%)."
    )


def test_texts_that_repeat_only_in_later_folds_are_reported():
    # The same few texts in folds 1 to 3; the texts of fold 0 are new.
    in_later = {n: {"text": f"text {n // 8:03}-{n % 2}"} for n in range(80) if n // 2 % 4 > 0}
    level, message = findings(in_later, n_folds=4)["duplicates-across"]
    assert level == "warning"
    assert message.startswith(
        "60 of 80 examples in test (60 of 80 texts) also occur in the training rows of their outer "
        "fold, in 3 of 4 outer folds"
    )
    assert "split.drop_repeated" in message


@pytest.mark.parametrize(
    ("changes", "code", "level", "message"),
    [
        (
            {6: {"label": "z"}, 7: {"label": "z"}},
            "missing-from-train",
            "error",
            "1 label of test does not occur in the training rows of 1 of 4 outer folds: z.",
        ),
        (
            {n: {"label": "x"} for n in range(80) if n // 2 % 4 == 2},
            "missing-from-test",
            "warning",
            "1 label of train does not occur in the test rows of 1 of 4 outer folds: y.",
        ),
        (
            {n: {"label": "z"} for n in (6, 14, 22, 2, 10)},
            "rare-labels",
            "warning",
            "1 label with fewer than 5 examples in the training rows of 2 of 4 outer folds: z.",
        ),
        (
            {70: {"group": "group 34"}},
            "crossing-groups",
            "error",
            "1 group on both sides, such as 'group 34'.",
        ),
    ],
)
def test_all_outer_folds_are_checked(changes, code, level, message):
    assert findings(changes, n_folds=4)[code] == (level, message)
