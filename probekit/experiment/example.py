"""A commented example experiment with sample data, as the start of a new one."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from probekit.errors import ConfigError
from probekit.experiment.bundled import bundled_data
from probekit.experiment.parsing import parse_yaml
from probekit.experiment.schema import experiment_schema
from probekit.files import as_store_error
from probekit.section import FolderName

SCHEMA = "experiment.schema.json"
_TEMPLATE = Path(__file__).with_name("example.yaml")
_NAME = "my_question"  # in the template
_EVERY = 3  # of three subjects, one is in the sample,
_ROWS = 16  # with this number of rows


def write_example(place: Path) -> list[Path]:
    """Write an experiment file, sample data and the schema; return the paths of the files.

    No existing file is changed. A schema from an earlier example in the same folder is reused.

    Args:
        place: path of the experiment file, with or without the ending .yaml.

    Raises:
        ConfigError: a file exists, or the name is not a valid name of an experiment.
        StoreError: the folder cannot be written.
    """
    place = place.with_name(re.sub(r"\.ya?ml$", "", place.name))
    name = _checked(place.name)
    quoted = name if isinstance(parse_yaml(f"name: {name}", "name")["name"], str) else f'"{name}"'
    yaml = _TEMPLATE.read_text(encoding="utf-8")
    yaml = re.sub(rf"(name: ){_NAME}", rf"\g<1>{quoted}", yaml).replace(_NAME, name)
    contents = {
        place.with_name(f"{name}.yaml"): yaml,
        place.with_name(f"{name}.csv"): sample_rows(),
        place.with_name(SCHEMA): experiment_schema(),
    }
    _refuse_existing(contents)
    for path, content in contents.items():
        with as_store_error("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    file.write(content)
    return [*contents]


def sample_rows() -> str:
    """Return a small balanced part of a bundled data set as the contents of a CSV file.

    >>> sample_rows().splitlines()[0]
    'text,label,group'
    """
    # The last of the columns text, label, group and attractor is left out.
    lines = bundled_data("subject_number").read_text(encoding="utf-8").splitlines()
    header, *rows = [line.rpartition(",")[0] for line in lines]
    of_subject: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        of_subject[row.rpartition(",")[2]].append(row)
    sample = [row for own in [*of_subject.values()][::_EVERY] for row in own[:_ROWS]]
    return "\n".join([header, *sample, ""])


def _checked(name: str) -> str:
    """Return a name unchanged; raise ConfigError if an experiment cannot have it."""
    try:
        return str(TypeAdapter(FolderName).validate_python(name))
    except ValidationError as error:
        fault = error.errors()[0]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:80] or _NAME
        reason = (
            "It begins with a letter or digit and consists of at most 80 letters, digits and the "
            f"characters . _ -; try {plain!r}"
            if fault["type"].startswith("string")
            else fault["msg"]
        )
        raise ConfigError(f"{name!r} cannot be the name of an experiment. {reason}.") from error


def _refuse_existing(contents: dict[Path, str]) -> None:
    """Raise ConfigError if a file exists; a schema with the same content may exist."""
    for path, content in contents.items():
        with as_store_error("read", path):
            if not path.exists() or (path.name == SCHEMA and path.read_bytes() == content.encode()):
                continue
        remedy = (
            "It is the schema of another version; delete or move it"
            if path.name == SCHEMA
            else "Give another name, or move the file"
        )
        raise ConfigError(f"{path} exists already, and no file is overwritten. {remedy}.")
