"""Pages about the weights of a model, or of a file with some of its tensors."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probekit.analysis.heads import circuits, head_norms, output, query_key_value, summarise
from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.model.config import WeightNames
from probekit.model.families.gpt2 import PUBLISHED, WEIGHTS
from probekit.model.families.table import model_config
from probekit.model.weights.checkpoint import CHECKPOINT_FILES, Checkpoint, open_checkpoint
from probekit.model.weights.hub import find_model
from probekit.model.weights.sources import HPARAMS, ignored_keys
from probekit.pipeline.look.exports import write_page_or_rows
from probekit.report.pages.weights_page import MOST_CELLS, overview_page, weight_page
from probekit.results.network import HeadWeights, WeightTensor

N_COLUMNS = 3  # of the position embeddings that are plotted
CORNER = 300  # rows and columns of a large matrix that are shown

Floats = NDArray[np.float32]

_ATTENTION = re.compile(r"(h\.\d+\.attn\.)(c_attn|c_proj)\.weight")  # groups: block, map


def write_weights_page(
    source: str,
    out: Path,
    *,
    tensor: str | None = None,
    columns: Sequence[int] = (),
    corner: int | None = None,
    n_head: int | None = None,
    paper: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a page about the weights of a model, or its figures, and return the (first) path.

    Args:
        source: `mini`, a hub name, a folder, or a file of weights, which may be incomplete.
        out: output page (.html) or figure (.pdf, .svg, .png).
        tensor: name of the tensor to plot; None for an overview of all.
        columns: columns of a matrix to plot as curves; by default those of the position embeddings
            that vary most smoothly with the position, and none for other matrices.
        corner: number of rows and columns shown of a large matrix; by default CORNER. Position
            embeddings are shown completely, unless they have more than MOST_CELLS cells.
        n_head: number of heads, if there is no config.json next to the weights.
        paper: how figures are drawn; see `write_page_or_rows`.

    Raises:
        MissingError: there are no such weights.
        CheckpointError: they cannot be read.
        ConfigError: there is no such tensor or column, it cannot be plotted, or the number of
            heads is unknown or contradicts config.json.
    """
    checkpoint, tensor_names = _open(source)
    tensor = tensor_names.in_network(tensor) if tensor else tensor
    if tensor is None:
        if columns or corner is not None or n_head is not None:
            raise ConfigError(
                "--column, --corner and --n-head require a tensor: give it too, e.g. "
                "--tensor wpe.weight."
            )
        names = sorted(checkpoint.tensors, key=_in_order)
        rows = summarise((name, _read(checkpoint, name)) for name in names)
        return write_page_or_rows(out, partial(overview_page, rows, source), paper=paper)[0]
    stored = _read(checkpoint, tensor)
    if stored.ndim not in (1, 2) or not stored.numel():
        raise ConfigError(
            f"{tensor} has shape {tuple(stored.shape)}: only vectors and matrices can be plotted. "
            "Without --tensor the page is an overview of all tensors."
        )
    values: Floats = stored.float().numpy()
    for column in columns:
        if values.ndim != 2:
            raise ConfigError(f"{tensor} has shape {values.shape}: it has no columns to plot.")
        if not 0 <= column < values.shape[1]:
            raise ConfigError(
                f"{tensor} has no column {column}. Allowed: 0 to {values.shape[1] - 1}."
            )
    if not columns and tensor == "wpe.weight" and values.ndim == 2:
        centred = values - values.mean(axis=0)
        alike = (centred[1:] * centred[:-1]).sum(axis=0)  # values at adjacent positions
        columns = sorted(np.argsort(-alike, kind="stable")[:N_COLUMNS].tolist())
    is_complete = tensor == "wpe.weight" and values.size <= MOST_CELLS
    attention = _ATTENTION.fullmatch(tensor)
    corner = None if is_complete else corner or CORNER
    heads = _heads(source, checkpoint, attention[1], attention[2], n_head) if attention else None
    weight = WeightTensor(summarise([(tensor, stored)]), values, tuple(columns), corner, heads)
    return write_page_or_rows(out, partial(weight_page, weight, source), paper=paper)[0]


def _open(source: str) -> tuple[Checkpoint, WeightNames]:
    """Return the tensors of a folder or file, and how their architecture names tensors.

    The folder or file may contain only some weights of a model. A single .safetensors file in a
    folder may have any name. Names are those of GPT-2 for a file, or without a config.json.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return open_checkpoint(path, WEIGHTS), WEIGHTS
    folder, names = find_model(source), WEIGHTS
    if (folder / "config.json").is_file():
        # Raises for architectures that are not carried.
        names = model_config(folder, ignored_keys(source)).WEIGHTS
    is_known = any((folder / name).is_file() for name in CHECKPOINT_FILES)
    files = [] if is_known else list(folder.glob("*.safetensors"))
    return open_checkpoint(files[0] if len(files) == 1 else folder, names), names


def _in_order(name: str) -> list[tuple[int, int, str]]:
    """Return the sort key of a tensor name; numeric parts are sorted by value.

    >>> sorted(["wte.weight", "h.10.ln_1.bias", "h.2.ln_1.bias"], key=_in_order)
    ['h.2.ln_1.bias', 'h.10.ln_1.bias', 'wte.weight']
    """
    # Of two numbers the longer one is larger; names of thousands of digits are no int of Python.
    parts = name.split(".")
    return [(0, len(part), part) if part.isdecimal() else (1, 0, part) for part in parts]


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    """Return a tensor of a checkpoint; raises UnknownNameError if there is no such tensor."""
    if name not in checkpoint.tensors:
        near = nearest(name if "." in name else f"{name}.weight", checkpoint.tensors)
        raise UnknownNameError(f"{checkpoint.path} has no tensor {name!r}. {near}")
    return checkpoint.tensors[name].read()


def _heads(
    source: str, checkpoint: Checkpoint, block: str, drawn: str, n_head: int | None
) -> HeadWeights:
    """Return the head weights of a block, as far as the checkpoint has its attention tensors.

    `drawn` is the map that the page plots, `c_attn` or `c_proj`.
    """
    stored: dict[str, Floats] = {}
    for name in ("c_attn", "c_proj"):
        tensor = checkpoint.tensors.get(f"{block}{name}.weight")
        if tensor is not None:
            stored[name] = tensor.read().float().numpy()
    # The number of heads cannot be inferred from the shapes of tensors.
    folder = checkpoint.path.parent
    if any((folder / name).is_file() for name in ("config.json", HPARAMS)):
        configured = model_config(folder, ignored_keys(source)).n_heads
        if n_head not in (None, configured):
            raise ConfigError(
                f"--n-head {n_head} contradicts the config in {folder}, which has {configured} "
                "heads. Remove --n-head, or correct the config."
            )
        n_head = configured
    if n_head is None:
        # Both maps have d_model rows, which identify a published GPT-2.
        published = {config.n_embd: config.n_head for config in PUBLISHED.values()}
        n_head = published.get(stored[drawn].shape[0])
    if n_head is None:
        raise ConfigError(
            f"The number of heads of {checkpoint.path} is unknown: its tensors do not show it, and "
            "there is no config.json next to it. Give --n-head."
        )
    parts: dict[str, Floats] = {}
    if "c_attn" in stored:
        parts |= query_key_value(stored["c_attn"], n_head)
    if "c_proj" in stored:
        parts["output"] = output(stored["c_proj"], n_head)
    return HeadWeights(
        parts=parts,
        norms=head_norms(parts),
        spectra=circuits(parts, parts["output"]) if len(stored) == 2 else {},
        drawn=("output",) if drawn == "c_proj" else ("query", "key", "value"),
    )
