"""The bundled experiments and recipes with their questions and requirements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from probekit.experiment.bundled import bundled_files
from probekit.experiment.loader import load_experiment, load_recipe
from probekit.experiment.parsing import parse_yaml, read_yaml
from probekit.experiment.schema import Experiment


@dataclass(frozen=True)
class BundledExperiment:
    """A bundled experiment or recipe.

    Attributes:
        name: the name that commands accept.
        question: the question of an experiment; for a recipe its purpose.
        needs: what must be available in addition to the package; empty if nothing.
        command: the command that runs it.
    """

    name: str
    question: str
    needs: tuple[str, ...]
    command: str


def bundled_experiments() -> list[BundledExperiment]:
    """Return all bundled experiments, then all recipes, in alphabetical order.

    >>> {one.name: one.needs for one in bundled_experiments()}["quickstart"]
    ()
    """
    listed = [_entry(name, path) for name, path in bundled_files().items()]
    return sorted(listed, key=lambda one: (one.command.startswith("probekit pretrain"), one.name))


def _entry(name: str, path: Path) -> BundledExperiment:
    content = parse_yaml(read_yaml(path), str(path))
    if "corpus" in content:
        recipe = load_recipe(path)
        source = Path(recipe.corpus.source)
        needs = () if source.exists() else ("texts: --set corpus.source=PATH",)
        question = f"Pretraining of the model `{recipe.name}` on the texts of a corpus."
        return BundledExperiment(name, question, needs, f"probekit pretrain {name}")
    experiment = load_experiment(path)
    question = experiment.question or ""
    return BundledExperiment(name, question, tuple(_needs(experiment)), f"probekit run {name}")


def _needs(experiment: Experiment) -> Iterator[str]:
    """Yield the requirements of an experiment that the package does not include."""
    data, source = experiment.data, experiment.model.source
    files = [name for name in (data.file, data.train, data.test) if name is not None]
    absent = [name for name in files if not (Path(data.root) / name).is_file()]
    if absent:
        yield f"{', '.join(absent)}: --set data.root=FOLDER"
    if source != "mini" and not Path(source).is_dir():
        yield f"network: downloads {source}"
