"""Table of engines: a new one is its file in this folder, and its row here.

This module does not import torch, so that a command on a finished run answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.memory import importing
from probekit.terminal import SILENT, Watcher

if TYPE_CHECKING:
    from probekit.activations.records import Location
    from probekit.pipeline.engines.engine import Engine
    from probekit.pipeline.engines.network import NetworkEngine


class How(NamedTuple):
    """How an engine is prepared.

    Attributes:
        device: compute device, or several, such as `cuda:0,cuda:1`.
        to_compute: False if the networks are only digested; see `target_network`.
        replies: what happens to replies of the network: they are generated; read if an earlier run
            has stored them; or refused, by a command that needs none, or because several processes
            would generate them.
        cache_root: folder or URL of the caches, for replies; None for the user's default.
        watcher: receives the progress of replies.
    """

    device: str = "cpu"
    to_compute: bool = True
    replies: Literal["generated", "stored", "refused", "shared"] = "refused"
    cache_root: Location | None = None
    watcher: Watcher = SILENT


PLAIN = How()


class EngineRow(NamedTuple):
    """An engine: the class `NameEngine` in the file `name.py`.

    Attributes:
        name: the name of its file.
        suits: whether it is that of an experiment.
        folder: key of the folder with the files of activations, which results depend on by their
            contents; empty if it reads none.
    """

    name: str
    suits: Callable[[Any], bool]
    folder: tuple[str, ...] = ()


# The engine of an experiment is the first one that suits it.
ENGINES = (
    EngineRow("given", lambda x: isinstance(x, ActivationExperiment), ("activations", "folder")),
    EngineRow(
        "requests", lambda one: one.capture.requests is not None, ("capture", "requests", "folder")
    ),
    EngineRow("replies", lambda one: one.capture.generate is not None),
    EngineRow("network", lambda _: True),
)


def engine_of(experiment: AnyExperiment) -> EngineRow:
    """Return the row of the engine of an experiment."""
    return next(row for row in ENGINES if row.suits(experiment))


@overload
def prepare(experiment: Experiment, how: How = PLAIN) -> NetworkEngine: ...


@overload
def prepare(experiment: AnyExperiment, how: How = PLAIN) -> Engine: ...


def prepare(experiment: AnyExperiment, how: How = PLAIN) -> Engine:
    """Return the engine of an experiment: its rows, without their activations.

    Networks are loaded or made on first use; none is, unless replies are generated.

    Raises:
        MissingError: a data file, the model's config or its vocabulary does not exist, or there are
            no requests.
        CheckpointError: the vocabulary has more tokens than the model.
        ConfigError: a site or a column does not exist, a text of the section `attention` has no
            token or too many, or replies are refused.
        DataError: the data cannot be read, tokenized, aligned or split, or a text has no request.
    """
    name = engine_of(experiment).name
    with importing():
        engine = getattr(import_module(f"{__package__}.{name}"), f"{name.title()}Engine")
    prepared: Engine = engine.prepare(experiment, how)
    return prepared
