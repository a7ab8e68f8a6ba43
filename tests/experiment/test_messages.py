"""Error messages name the given value, the allowed values and a remedy."""

import re

import pytest
from pydantic import BaseModel, ValidationError

from probekit.experiment.messages import explain, find_faults
from probekit.experiment.schema import Experiment

GOOD = {
    "name": "small",
    "model": {"source": "mini"},
    "data": {"name": "rows", "format": "csv", "file": "rows.csv"},
    "tokens": {"bos": False, "position": {"at": "last"}},
}

# Terms of Python and pydantic that do not occur in YAML files.
JARGON = re.compile(
    r"Input should|Field required|instance|dictionar|[Tt]uple|[Pp]attern|None|True|False|valid"
)


def with_value(dotted, value):
    """Return the valid file with one value replaced."""
    *above, last = dotted.split(".")
    values = {**GOOD}
    section = values
    for key in above:
        section[key] = {**section.get(key, {})}
        section = section[key]
    section[last] = value
    return values


def answers(dotted, value):
    with pytest.raises(ValidationError) as error:
        Experiment.model_validate(with_value(dotted, value))
    return [explain(fault, Experiment) for fault in find_faults(error.value)]


def answer(dotted, value):
    [(_, text)] = answers(dotted, value)
    return text


@pytest.mark.parametrize(
    ("dotted", "value", "text"),
    [
        ("tokens.position.at", "lats", "Nearest: last."),
        ("capture.dtype", "float61", "Nearest: float16, "),
        ("capture.dtype", "float61", " Allowed: float16, float32."),
        (
            "tokens.position.at",
            "index 50",
            "Nearest: index. Allowed: all, assistant_last, first, index, last, ",
        ),
        ("tokens.position.at", "index 50", "has its own key: {at: index, index: 3}, "),
        ("tokens.position.at", "word:last-1", "{at: word, pieces: last}, {at: span, offset: -1}."),
        ("probe.seed", "abc", "It must be an integer. Allowed: at least 0, less than 4,294,"),
        ("split.test", "half", "It must be a number. Allowed: greater than 0, less than 1."),
        (
            "probe.baselines",
            ["length", "length"],
            "probe.baselines.1 is 'length', which is already ",
        ),
        ("capture.concatenate", ["x"], "It must be a list, such as [blocks.*.hook_resid_post]."),
        ("seed", 3, "Did you mean split.seed or probe.seed?"),
        ("model.folds", 3, "Did you mean split.folds or probe.folds?"),
        ("tokens.too_long", "truncated", "Nearest: truncate."),
        ("capture.dtype", 16, "Allowed: float16, float32."),
        ("tokens.position", "last", "It must be a section of keys, such as {at: last}."),
        ("model", "mini", "It must be a section of keys, such as {source: mini}."),
        ("tokens", [1], "a section of keys, such as {bos: true, position: {at: last}}."),
        ("data", 3, "such as {name: ..., format: csv}."),
        ("split", 0.5, "such as {test: 0.25}."),
        ("attention", "x", "such as {texts: [The keys to the cabinet]}."),
        ("probe.C", 1, "It must be a list, such as [0.0001, 0.001]."),
        ("capture.sites", "x", "a list, such as [blocks.0.hook_resid_pre, "),
        ("capture.sites", [], "capture.sites is []. It must list at least 1."),
        ("name", "my question", "It must consist of letters, digits, dot, _ and -"),
        ("name", "my question", "try 'my_question'."),
        ("name", "../up", "try 'up'."),
        ("name", "?", "try 'my_name'."),
        ("data.name", "à la", "try 'la'."),
        ("name", "a" * 81, "It must have at most 80 characters."),
        ("name", "a" * 200, f"name is '{'a' * 79} ..."),
        ("model.source", "", "It must have at least 1 character"),
        ("tokens.bos", "no", "true or false (YAML 1.2 reads yes and no as text)."),
        ("probe.folds", 2.5, "probe.folds is 2.5. It must be an integer."),
        ("probe.folds", True, "probe.folds is true. It must be an integer."),
        ("probe.folds", 1, "It must be at least 2."),
        ("probe.permutations", -1, "It must be at least 0."),
        ("probe.permutations", 10**9, "It must be at most 1,000,000."),
        ("probe.control_draws", 10**9, "It must be at most 100."),
        ("probe.seed", -1, "It must be at least 0."),
        ("model.random_seed", 2**32, "It must be less than 4,294,967,296."),
        ("split.test", "half", "split.test is 'half'. It must be a number."),
        ("split.test", 0.0, "It must be greater than 0."),
        ("split.test", 1.0, "It must be less than 1."),
        ("probe.C", [0.1, 0], "probe.C.1 is 0. It must be at least 1e-10."),
        ("probe.C", [1e-11], "probe.C.0 is 1e-11. It must be at least 1e-10."),
        ("probe.C", [1e300], "probe.C.0 is 1e+300. It must be at most 10,000,000,000."),
        ("data.file", 3, "data.file is 3. It must be text (a number needs quotes"),
    ],
)
def test_message_names_the_allowed_values(dotted, value, text):
    assert text in answer(dotted, value)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dotted", ["split.test", "probe.C"])
def test_infinite_numbers_are_refused(dotted, number):
    text = answer(dotted, [1.0, number] if dotted == "probe.C" else number)
    assert "It must be a finite number." in text


def test_null_has_its_own_message():
    assert answer("tokens.bos", None).startswith("tokens.bos is null (empty). It must be true or")
    assert answer("tokens.bos", None).endswith("as text).")  # it has no default
    assert answer("probe.folds", None).endswith("integer. Remove the key to use its default.")
    assert answer("probe.C", [None]) == "probe.C.0 is null (empty). It must be a number."
    assert answer("probe.fold", None) == "unknown key 'probe.fold'. Nearest: folds."
    Experiment.model_validate(with_value("probe.fit_rows", None))  # null is valid here


@pytest.mark.parametrize("items", [[0], [0, 0], [None], ["x"]])
def test_errors_in_items_do_not_name_the_list(items):
    places = [keys for keys, _ in answers("probe.C", items)]
    assert places == [("probe", "C", number) for number in range(len(items))]


def test_independent_errors_are_all_reported():
    values = with_value("probe.C", [0])
    values["tokens"] = {"bos": 1}
    with pytest.raises(ValidationError) as error:
        Experiment.model_validate(values)
    places = {explain(fault, Experiment)[0] for fault in find_faults(error.value)}
    assert places == {("probe", "C", 0), ("tokens", "bos"), ("tokens", "position")}


def all_keys(section=Experiment, above=()):
    for key, field in section.model_fields.items():
        yield ".".join((*above, key))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_keys(field.annotation, (*above, key))


WRONG = [None, "", "?", 3, -1, 0.5, float("nan"), True, [], [{}], [0], {}, {"x": 1}, "x" * 100]


@pytest.mark.parametrize("dotted", list(all_keys()))
def test_messages_contain_no_python_terms(dotted):
    refused = 0
    for value in WRONG:
        try:
            Experiment.model_validate(with_value(dotted, value))
        except ValidationError as error:
            for keys, text in (explain(fault, Experiment) for fault in find_faults(error)):
                refused += 1
                assert not JARGON.search(text.replace("FEATS:Name", "")), text
                assert keys
                assert text.endswith(".")
    assert refused


@pytest.mark.parametrize(
    ("name", "other"),
    [("aux", "my_aux"), ("NUL.v2", "my_NUL.v2"), ("com1", "my_com1"), ("a.", "a")],
)
def test_names_reserved_on_windows_are_refused(name, other):
    text = answer("name", name)
    assert text.startswith(f"name is {name!r}. Windows ")
    assert text.endswith(f"try {other!r}.")


def test_names_similar_to_reserved_ones_are_allowed():
    for name in ("auxiliary", "com", "console", "a.nul", "v1.2"):
        assert Experiment.model_validate(with_value("name", name)).name == name
