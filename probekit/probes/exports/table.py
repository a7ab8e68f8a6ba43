"""Table of the formats in which a probe goes to other tools; one file of this folder each.

The file NAME.py has the function `NAME_file(probe, name)`: the content of the file of this name,
and Python code that uses it. The code reads rows `X` (n_rows, n_features) where it scores rows.
Formats that steer hold a vector, and are read again by `NAME_vector(path)`. Numbers are float64
where a format has it, else float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError, MissingError, UnknownNameError, nearest
from probekit.files import write_atomic
from probekit.probes.exports.facts import readme
from probekit.probes.exports.plain import plain_probe
from probekit.probes.exports.vector import SteeringVector, layer_read
from probekit.probes.probe_files import probe_files
from probekit.probes.saved_probe import SavedProbe
from probekit.provenance import install_command


@dataclass(frozen=True)
class ExportFormat:
    """A format of other tools.

    Attributes:
        name: its name, which is that of its file in this folder.
        ending: ending of the file that is written.
        what: what is written, and who reads it.
        needs: the package that writes it, which is an extra of probekit; "" for none.
        steers: whether it is a vector that steers, in place of a probe.
        has_layers: whether it can hold probes of several layers.
        is_raw: whether it can hold only probes of raw rows.
        at_blocks: whether it reads or steers only the output of a block.
    """

    name: str
    ending: str
    what: str
    needs: str = ""
    steers: bool = False
    has_layers: bool = False
    is_raw: bool = True
    at_blocks: bool = False


FORMATS = {
    one.name: one
    for one in (
        ExportFormat("plain", ".safetensors", "weight, bias and facts, for any tool", is_raw=False),
        ExportFormat("torch", ".pt", "state_dict of nn.Linear", has_layers=True),
        ExportFormat("sklearn", ".skops", "fitted model of scikit-learn", "skops"),
        ExportFormat("onnx", ".onnx", "model of ONNX Runtime", "onnx", has_layers=True),
        ExportFormat(
            "vllm_hook", ".py", "hook of vLLM-Lens that scores each token", at_blocks=True
        ),
        ExportFormat(
            "vllm_vector", ".json", "steering vector of vLLM-Lens", steers=True, at_blocks=True
        ),
        ExportFormat(
            "gguf", ".gguf", "control vector of llama.cpp and repeng", "gguf", True, at_blocks=True
        ),
    )
}


def export_probe(
    probe: SavedProbe, path: Path | str, to: str, *, towards: str | None = None, by: float = 1.0
) -> tuple[Path, Path]:
    """Write a probe for another tool; return the paths of the file and of its description.

    Args:
        probe: the probe.
        path: the file; the ending of the format is added if it is missing.
        to: name of the format; see `FORMATS`.
        towards: label that a steering vector points to; None means the second of two.
        by: length of a steering vector, in standard deviations of the projection.

    Raises:
        UnknownNameError: there is no such format or label.
        ConfigError: the format cannot hold this probe, or its package is not installed.
        StoreError: a file cannot be written.
    """
    if to not in FORMATS:
        raise UnknownNameError(f"There is no format {to!r}. {nearest(to, FORMATS)}")
    row = FORMATS[to]
    if row.needs and find_spec(row.needs) is None:
        raise ConfigError(
            f"The format {to} needs the package {row.needs}. Install it: "
            f"{install_command(row.needs)}."
        )
    if not row.steers and (towards is not None or by != 1.0):
        raise ConfigError(f"`towards` and `by` are for vectors that steer; {to} holds a probe.")
    if reason := why_not(row, probe):
        raise ConfigError(reason)
    path = Path(path)
    if not path.name:
        raise ConfigError(f"{path} is a folder. Give the name of a file.")
    path = path if path.suffix == row.ending else path.with_name(path.name + row.ending)
    of_probe = set(probe_files(path))
    if path in of_probe and any(one.exists() for one in of_probe - {path}):
        raise ConfigError(f"{path} would be taken for a part of a saved probe. Give another name.")
    written: Any = SteeringVector.of(probe, towards, by) if row.steers else probe
    content, code = _door(row, "file")(written, path.name)
    about = path.with_name(path.name + ".md")
    write_atomic(path, content)
    write_atomic(about, readme(written, row.what, code))
    return path, about


def why_not(row: ExportFormat, probe: SavedProbe) -> str:
    """Return why a format cannot hold a probe, and what to do; "" if it can."""
    facts = probe.facts
    if facts.aggregation is not None:
        return (
            "This probe scores a text by a rule over its tokens, which no other tool has. Export a "
            "probe of single rows."
        )
    if row.is_raw and facts.view != "raw":
        return (
            f"This probe reads normalized rows, which {row.name} cannot state. Use the format "
            "plain, or fit the probe with `capture.view: raw`."
        )
    if len(probe.layers) > 1 and not row.has_layers:
        able = ", ".join(one.name for one in FORMATS.values() if one.has_layers)
        return (
            f"This {facts.kind} probe has {len(probe.layers)} layers; {row.name} holds one. "
            f"Formats of several layers: {able}."
        )
    try:
        _ = row.at_blocks and layer_read(facts.site)
    except ConfigError as error:
        return str(error)
    return ""


def export_commands(probe: SavedProbe, name: str) -> list[str]:
    """Return a command for each format that can hold a probe, with a comment on the file.

    Args:
        probe: the probe.
        name: its name in the commands, such as RUN/probes/final.
    """
    rows = [row for row in FORMATS.values() if not why_not(row, probe)]
    towards = " --towards LABEL" if len(probe.classes) > 2 else ""
    commands = [
        f"probekit export {name} --to {row.name} --out {row.name}{row.ending}{towards * row.steers}"
        for row in rows
    ]
    width = max(map(len, commands), default=0)
    return [f"{one:{width}}  # {row.what}" for one, row in zip(commands, rows, strict=True)]


def exported_probe(path: Path, model: str) -> SavedProbe | None:
    """Return the probe in a file that `export_probe` wrote; None for the files of a saved probe.

    A steering vector is a probe along which `model` is steered: one standard deviation of its
    projection is the length of the vector, so that a dose of 1 adds the vector.

    Raises:
        MissingError: there is no such file.
        DataError: the file is damaged, or has vectors of several layers.
    """
    rows = (row for row in FORMATS.values() if path.suffix == row.ending)
    row = next((row for row in rows if row.steers or row.name == "plain"), None)
    others = {one for one in probe_files(path) if one != path}
    if row is None or any(one.exists() for one in others):
        return None
    if not path.is_file():
        raise MissingError(f"There is no file {path}.")
    if not row.steers:
        return plain_probe(path)
    found: SteeringVector = _door(row, "vector")(path)
    return found.as_probe(model)


def _door(row: ExportFormat, what: str) -> Any:
    """Return a function of the file of a format."""
    module = import_module(f"{__name__.rpartition('.')[0]}.{row.name}")
    return getattr(module, f"{row.name}_{what}")
