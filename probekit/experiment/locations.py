"""Files and folders that experiments and recipes name, and the bundled ones."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError, MissingError, nearest, path_of
from probekit.experiment.document import Document
from probekit.model.weights.sources import KNOWN_MODELS
from probekit.provenance import PACKAGE
from probekit.section import URL
from probekit.training.run_files import find_checkpoints

ENDINGS = (".yaml", ".yml")  # of experiment files
# Key that only this kind of file has, its description, and the command that reads it.
_KINDS = (
    ("corpus", "a pretraining recipe", "pretrain"),
    ("activations", "an experiment on given activations", "run"),
    ("tokens", "an experiment on texts", "run"),
)


def bundled_folder(package: Path = PACKAGE) -> Path:
    """Return the folder of the bundled experiments; the data sets are in `../data`.

    In an installed package it is inside the package, in a checkout at the top level.

    >>> bundled_folder().name
    'experiments'
    """
    installed = package / "bundled" / "experiments"
    return installed if installed.is_dir() else package.parent / "experiments"


def bundled_data(name: str) -> Path:
    """Return the CSV file of a bundled data set.

    >>> bundled_data("capitals").name
    'capitals.csv'
    """
    return bundled_folder().with_name("data") / f"{name}.csv"


def bundled_files() -> dict[str, Path]:
    """Return the files of the bundled experiments and recipes by name.

    >>> bundled_files()["quickstart"].name
    'quickstart.yaml'
    """
    return {path.stem: path for path in sorted(bundled_folder().glob("*.yaml"))}


def find_file(given: str | Path) -> Path:
    """Return the file of an experiment or recipe, given by path or by name.

    A local file has precedence: the name `a` refers to the file `a`, else to `a.yaml` or `a.yml`,
    else to the bundled experiment `a`. An existing folder is returned as it is.

    >>> find_file("quickstart").name
    'quickstart.yaml'

    Raises:
        ConfigError: `given` is neither text nor a path.
        MissingError: there is no such file and no bundled experiment of this name.
    """
    path = path_of("path", given, "Give the path of a file, or the name of a bundled one.")
    found = next(_local_files(path), None) or bundled_files().get(_name(path))
    if found is None and not _exists(path):
        local = [one.name for one in path.parent.glob("[!.]*") if one.suffix in ENDINGS]
        raise MissingError(
            f"Experiment file {path.absolute()} does not exist. "
            f"{nearest(path.stem, [*bundled_files(), *local])} `probekit experiments` lists the "
            "bundled ones, which are given without folder and ending."
        )
    return found or path


def is_experiment(given: str | Path) -> bool:
    """Return whether a path or name refers to the file of an experiment, rather than a model.

    >>> is_experiment("quickstart"), is_experiment("missing.yaml"), is_experiment("mini")
    (True, True, False)
    """
    path = Path(given)
    return path.suffix in ENDINGS or _name(path) in bundled_files() or any(_local_files(path))


def _name(path: Path) -> str:
    """Return the name that a path without folder and ending can stand for; "" for other paths."""
    return path.name if len(path.parts) == 1 and not path.suffix else ""


def _local_files(path: Path) -> Iterator[Path]:
    """Yield the existing files that a path or name refers to."""
    endings = ("", *ENDINGS) if _name(path) else ("",)
    files = (path.with_name(path.name + ending) if ending else path for ending in endings)
    yield from (file for file in files if _exists(file) and file.is_file())


def _exists(path: Path) -> bool:
    """Return whether a path exists; False if it cannot be a path on this file system."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or a path that is not valid
        return False


def resolve_experiment(values: dict[str, Any], document: Document) -> None:
    """Make the paths of an experiment absolute, and choose the checkpoints of its model.

    Args:
        values: the contents of the file; changed in place.
        document: the file.

    Raises:
        ConfigError: the file is of another kind, a path is invalid, or the model has both `path`
            and another `source`.
        MissingError: a checkpoint does not exist.
    """
    if "over" in values:
        text = f"this is a study, with several experiments. Run all: `probekit run {document.name}`"
        raise ConfigError(document.put(("over",), f"{text}."))
    _check_kind(values, "tokens", document)
    resolve_data(values, document)
    for key in ("model.path", "capture.requests", "capture.requests.folder"):
        resolve_path(values, tuple(key.split(".")), document)
    resolve_path(values, ("model", "source"), document, names=KNOWN_MODELS)
    resolve_path(values, ("data", "hub", "name"), document, names=())
    model = values.get("model")
    if isinstance(model, dict) and isinstance(model.get("path"), str):
        with document.at("model", "path"):
            folders = find_checkpoints(Path(model["path"]))
        if model.get("checkpoints") in ("all", []):
            model["checkpoints"] = sorted(folders)
        requested: Any = model.get("checkpoints")
        is_steps = isinstance(requested, list) and all(type(step) is int for step in requested)
        listed = requested if is_steps else []  # other values are rejected later, by the schema
        absent = [step for step in listed if step not in folders]
        if absent:
            steps = ", ".join(map(str, folders))
            text = f"{model['path']} has no checkpoint of step {absent[0]}; it has {steps}."
            raise MissingError(document.put(("model", "checkpoints"), text))
        # `source` is filled in with the folder of the last checkpoint to probe.
        last = str(folders[max(listed or folders)])
        source = model.setdefault("source", last)
        if source != last:
            text = "give either `source` or `path`, not both."
            raise ConfigError(document.put(("model", "source"), text))


def resolve_recipe(values: dict[str, Any], document: Document) -> None:
    """Make the paths of a recipe absolute.

    Raises:
        ConfigError: the file is an experiment, or a path is invalid.
    """
    _check_kind(values, "corpus", document)
    resolve_path(values, ("corpus", "source"), document)
    resolve_path(values, ("vocabulary", "source"), document, names=KNOWN_MODELS)


def _check_kind(values: dict[str, Any], own: str, document: Document) -> None:
    """Raise ConfigError if a file has the key of another kind of file and not its own."""
    for key, kind, command in _KINDS:
        if key in values and own not in values:
            text = f"this is {kind}. Read it with `probekit {command} {document.name}`."
            raise ConfigError(document.put((key,), text))


def resolve_data(values: dict[str, Any], document: Document) -> None:
    """Make the folder of the data absolute; by default it is the folder of the file."""
    data = values.get("data")
    if isinstance(data, dict):
        data.setdefault("root", ".")
    resolve_path(values, ("data", "root"), document)


def resolve_path(
    values: dict[str, Any],
    keys: tuple[str, ...],
    document: Document,
    *,
    names: Collection[str] | None = None,
) -> None:
    """Make a path absolute; URLs are left to the schema, which rejects them.

    Args:
        values: the contents of the file; changed in place.
        keys: location of the path.
        document: the file.
        names: None for a path. Otherwise the text may be a name, and is a path only if it begins
            with `.` or `~`, or there is such a folder; those in `names` never are.
    """
    section: Any = values
    for key in keys[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    text = section.get(keys[-1]) if isinstance(section, dict) else None
    if not isinstance(text, str) or not text or URL.match(text) or text in (names or ()):
        return
    path = document.absolute(keys, text)
    if names is None or text.startswith((".", "~")) or path.is_dir():
        section[keys[-1]] = str(path)
