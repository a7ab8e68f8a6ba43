"""Every mistake in a file is reported with file, line and key, and the nearest name."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from probekit.errors import ConfigError
from probekit.experiment.document import Document, explain, find_faults
from probekit.experiment.loader import load_any_experiment, load_experiment, load_recipe
from probekit.experiment.schema import Experiment
from tests.experiment.files import GIVEN, GOOD, RECIPE
from tests.pipeline.intervene.cause_experiment import YAML as CAUSES

FILES = {"experiment": GOOD, "interventions": CAUSES, "recipe": RECIPE, "activations": GIVEN}


def mistakes():
    """Yield the kind of file and the line of each mistake in mistakes.txt."""
    for line in Path(__file__).with_name("mistakes.txt").read_text().splitlines():
        if line.startswith("## "):
            kind = line.removeprefix("## ")
        else:
            yield pytest.param(kind, line, id=f"{kind}: {line}")


@pytest.mark.parametrize(("kind", "mistake"), list(mistakes()))
def test_a_mistake_is_reported_with_file_and_line_or_override(write, refused, kind, mistake):
    """A line has a text of the valid file and its replacement, or `+` and a text to append."""
    load = load_recipe if kind == "recipe" else load_any_experiment
    mistake = mistake.replace(r"\n", "\n").replace(r"\t", "\t")
    if kind == "override":
        refused(load, write(GOOD), [mistake])
        return
    good = FILES[kind]
    old, _, new = mistake.partition(" =>")
    assert old in good or old.startswith("+ ")
    refused(load, write(good + old[2:] if old.startswith("+ ") else good.replace(old, new[1:])))


@pytest.mark.parametrize(
    "content",
    ["", "text\n", "a: &a [x, x]\nb: [*a, *a]\n", "a: 1\nb: caf\xe9\n", f"name: {'[' * 10_000}\n"],
    ids=["empty", "text", "aliases", "latin-1", "nested"],
)
def test_a_file_that_has_no_keys_is_refused_in_one_line(tmp_path, refused, content):
    (tmp_path / "file.yaml").write_text(content, encoding="latin-1")
    refused(load_any_experiment, tmp_path / "file.yaml")


def test_what_is_no_text_file_is_refused(write, tmp_path, refused):
    refused(load_any_experiment, tmp_path)  # a folder
    refused(load_any_experiment, write("#" * 1_200_000))


def test_a_file_of_another_kind_is_refused_with_its_command(write, refused):
    for load, text in (
        (load_experiment, RECIPE),
        (load_any_experiment, RECIPE),
        (load_experiment, GIVEN),
        (load_recipe, GOOD),
    ):
        refused(load, write(text))


def test_messages_of_python_are_preceded_by_the_place(write):
    for override in ("model.source=~nobody.at.all/x", f"data.root={'x' * 300}"):
        with pytest.raises(ConfigError, match=r"^--set: .*, which is not a valid path"):
            load_experiment(write(GOOD), [override])
    for content in ("\x00", f"a: {'1' * 5000}"):
        with pytest.raises(ConfigError, match=r"^[^\n]*file\.yaml is not valid YAML[^\n]*$"):
            load_experiment(write(content))


def test_independent_mistakes_are_all_reported_and_their_consequences_are_not(write, refused):
    text = GOOD.replace("source", "sauce").replace("bos: false", "bos: 3")
    refused(load_experiment, write(text))  # unknown key, missing key, wrong type


def test_only_the_first_of_many_mistakes_are_listed(write, refused):
    refused(load_experiment, write(GOOD + "".join(f"x{n}: 1\n" for n in range(5000))))
    refused(load_experiment, write(GOOD), [f"capture.sites={list(range(20))}"])


def test_names_similar_to_reserved_ones_are_allowed(write):
    for name in ("auxiliary", "com", "console", "a.nul", "v1.2"):
        assert load_experiment(write(GOOD), [f"name={name}"]).name == name


# Terms of Python and pydantic that do not occur in YAML files.
JARGON = (
    r"Input should|match pattern|Field required|instance|dictionar|[Tt]uple|None|True|False|valid"
)
WRONG = [None, "", "?", 3, -1, 0.5, float("nan"), True, [], [{}], [0], {}, {"x": 1}, "x" * 100]


def all_keys(section=Experiment, above=()):
    for key, field in section.model_fields.items():
        yield (*above, key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_keys(field.annotation, (*above, key))


@pytest.mark.parametrize("keys", list(all_keys()), ids=".".join)
def test_messages_contain_no_python_terms(write, keys):
    refused = 0
    for value in WRONG:
        section = values = load_experiment(write(GOOD)).model_dump()
        for key in keys[:-1]:
            section[key] = section = {**(section[key] or {})}
        section[keys[-1]] = value
        try:
            Experiment.model_validate(Document(values).values())
        except ValidationError as error:
            for place, text in (explain(fault, Experiment) for fault in find_faults(error)):
                refused += 1
                assert not re.search(JARGON, text.replace("FEATS:Name", "")), text
                assert place
                assert text.endswith(".")
    assert refused
