"""Commands that describe, train and check models, and the test of probekit itself."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.amounts import counted, percent
from probekit.cli import options
from probekit.cli.options import Texts, completions, later, watching
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit import hub, products
    from probekit.analysis import verification
    from probekit.cli import terminal
    from probekit.experiment import loader
    from probekit.model import config as configs
    from probekit.model.families import table
    from probekit.model.proven import choice, loading
    from probekit.model.proven import config as proven
    from probekit.model.proven import taps as proven_passes
    from probekit.model.sites import catalogue
    from probekit.model.weights import sources
    from probekit.pipeline import selftest
    from probekit.report.elements import table as tables
globals().update(later(__file__))


class ModelName(click.ParamType[Any]):
    """`mini`, a folder or a name on the hub; invalid names fail before any work.

    If `or_file`, the path of a file is valid, too.
    """

    name = "text"

    def __init__(self, *, or_file: bool = False) -> None:
        self.or_file = or_file

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return the name.

        Raises:
            MissingError: There is no such folder, or no model with that name.
            ConfigError: The name is empty, or the path of a file although not `or_file`.
        """
        del param, ctx
        if not (self.or_file and Path(value).is_file()):
            sources.local_folder(value)
        return str(value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> Any:
        """Return the named models, those of the hub that are on this machine, and folders."""
        del ctx, param
        cached = sorted(path.name for path in Path(hub.constants.HF_HUB_CACHE).glob("models--*"))
        of_hub = [name.removeprefix("models--").replace("--", "/") for name in cached]
        return completions(incomplete, dict.fromkeys([*sources.KNOWN_MODELS, *of_hub]))


model_option = click.option(
    "--model", type=ModelName(), required=True, help="Model: `mini`, a hub name or a folder."
)
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # of a parameter


@click.command()
@click.argument("model", type=ModelName())
def sites(model: str) -> None:
    """List the sites of a model with name, shape and formula."""
    with watching() as watcher:
        config = table.find_config(model, at=choice.Proving(watcher=watcher))
    sizes = {axis: size for axis, size in config.axis_sizes.items() if axis != "1"}
    rows = []
    for site in config.sites.rows:
        shape = " ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in site.axes)
        note = " (only on request)" if site.on_request else ""
        rows.append((site.name, shape, site.formula + note + _some_layers(config, site.name)))
    columns = (tables.Column("site", form="code"), *terminal.words("shape", "formula"))
    terminal.show_rows(columns, rows)
    n_sites = len(config.sites.without_request)
    terminal.echo(f"{{l}} is 0 to {config.n_layers - 1}: {n_sites:,} tensors.")
    if isinstance(config, proven.ProvenConfig):
        terminal.echo(f"Computed by {config.proof_facts}.")
        _show_missing(config)


def _some_layers(config: configs.ModelConfig, site: str) -> str:
    """Return the layers of a site that only some layers have, in words; "" if all have it."""
    if not isinstance(config, proven.ProvenConfig):
        return ""
    layers = config.sites.layers_of(site)
    return f" (layers {proven.numbered(layers)})" if 0 < len(layers) < config.n_layers else ""


def _show_missing(config: proven.ProvenConfig) -> None:
    """Print the sites and features that are not proven, each with the reason."""
    rows: dict[tuple[str, str], list[int]] = {}
    for name, reason in config.reasons.items():
        layer = catalogue.layer_of(name)
        at = rows.setdefault((catalogue.general_name(name), reason), [])
        at += [] if layer is None else [layer]
    if rows:
        columns = terminal.words("not proven", "layers", "reason")
        lines = [(name, proven.numbered(at), reason) for (name, reason), at in rows.items()]
        terminal.show_rows(columns, lines)


def _show_proof(model: str) -> None:
    """Print the proof of a model that transformers computes: each test, and what it showed."""
    with watching() as watcher:
        network = loading.load_proven(model, watcher=watcher)
    config, passes = network.config, network.passes
    of_kind = Counter(map(catalogue.general_name, network.sites))
    rows = [(name, f"{n} of {config.n_layers}") for name, n in of_kind.items()]
    terminal.show_rows([tables.Column("proven site", form="code"), "layers"], rows)
    shown = {**_TESTS, **{name: name for name in passes.facts if name not in _TESTS}}
    facts = [
        (words, _fact(passes.facts[name]))
        for name, words in shown.items()
        if words and passes.facts.get(name) not in (None, False)
    ]
    terminal.show_rows(terminal.words("test", "result"), facts)
    _show_missing(config)
    terminal.echo(
        f"Computed by {config.proof_facts}, tested on random texts of "
        f"{', '.join(map(str, proven_passes.LENGTHS))} tokens. Errors are distances of rows over "
        "their lengths."
    )


# Tests of a proof in words; "" for those that are not shown.
_TESTS = {
    "blocks": "list of blocks: the input of a block is the output of the one before, bit by bit",
    "head": "logits are the unembedding of the normed last stream: norm, unembedding, factors",
    "roles": "largest effect of an earlier token on an MLP; smallest on attention or a mixer",
    "attention": "",
    "regroups": "MLPs that regroup tokens, which changes rounding",
    "rounding": "largest effect of rounding errors before each block",
    "later tokens": "values after a change of later tokens",
    "other texts of a batch": "values after a change of other texts of a batch",
    "resume": "blocks that are called alone return the same",
    "gradients": "gradients agree with finite differences",
}


def _fact(value: Any) -> str:
    """Return the result of a test in words."""
    if isinstance(value, list | tuple):
        joint = " at " if any(isinstance(one, str) for one in value) else ", "
        return joint.join(map(_fact, value)) or "none"
    if isinstance(value, float):
        return f"{value:.1e}"
    return "holds" if value is True else str(value)


def show_models() -> None:
    """Print a line for each named model."""
    rows = []
    for name in sources.KNOWN_MODELS:
        config = table.find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layers, config.n_heads, config.d_model)
        rows.append((name, *map(str, sizes), f"{configs.count_parameters(config):,}", origin))
    columns = terminal.words("model", "layers", "heads", "d_model", "parameters", "from")
    terminal.show_rows(columns, rows)
    terminal.echo("Also: org/name@revision on the hub, or the path of a folder.")


@click.command()
@click.argument("model", type=ModelName())
@click.option("--untied", is_flag=True, help="Unembedding separate from the embedding.")
@click.option("--no-qkv-bias", is_flag=True, help="No biases of queries, keys and values.")
@click.option("--n-positions", type=int, help="Context length to use instead of the model's.")
@click.option("--vocab-size", type=int, help="Vocabulary size to use instead of the model's.")
@options.json_option
def params(model: str, untied: bool, no_qkv_bias: bool, as_json: bool, **sizes: int | None) -> None:
    """Count the parameters of MODEL by component.

    Each component has its formula, number, share and size.
    """
    options: dict[str, Any] = {
        "tie_word_embeddings": False if untied else None,
        "qkv_bias": False if no_qkv_bias else None,
        **sizes,
    }
    given = {name: value for name, value in options.items() if value is not None}
    config = table.find_config(model)
    unknown = sorted(given.keys() - {field.name for field in fields(config)})
    if unknown:
        raise click.UsageError(
            f"{model} is a {config.TITLE}, whose config has no {unknown[0]}. Leave out "
            f"--{unknown[0].replace('_', '-')}."
        )
    config = replace(config, **given)
    *sums, total = configs.count_sums(config)
    entries = {
        "components": [_entry(count, total) for count in configs.count_components(config)],
        "sums": [_entry(count, total) for count in (*sums, total)],
    }
    if as_json:
        click.echo(json_text({"model": model, "config": config.to_json()} | entries))
        return
    formula = tables.Column("formula", "words")
    columns = ("component", formula, "number", "times", "in all", "share", "MB")
    rows = []
    for block in entries.values():
        for entry in block:
            cells = [entry["name"], entry["formula"], f"{entry['number']:,}", str(entry["times"])]
            cells += [f"{entry['in_all']:,}", percent(entry["share"], 2)]
            rows.append([*cells, f"{entry['megabytes']['float32']:,.2f}"])
        rows.append([""] * len(columns))  # a blank line
    terminal.show_rows(columns, rows)
    axes = config.axis_sizes.items()  # including the axis "1", whose size is its name
    terminal.echo(", ".join(f"{axis} = {size:,}" for axis, size in axes if axis != "1"))
    terminal.echo("MB are 2^20 bytes, of numbers in float32; float16 and bfloat16 take half.")


def _entry(count: configs.ParameterCount, total: configs.ParameterCount) -> dict[str, Any]:
    """Return the facts on a component or a sum; its share is that of the total of the model."""
    return {
        "name": count.name,
        "formula": count.formula,
        "number": count.number,
        "times": count.times,
        "in_all": count.total,
        "share": count.total / total.total,
        "megabytes": {dtype: count.megabytes(size) for dtype, size in _BYTES.items()},
    }


@click.command("verify")
@click.argument("model", type=ModelName())
@click.option("--text", "texts", multiple=True, help="Text to compare; can be repeated.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    help="Dtype of both models. The tolerance is 5e-05 in float32 and 1e-10 in float64.",
)
def verify_model_command(model: str, texts: Texts, dtype: str) -> None:
    """Compare MODEL with transformers, tensor by tensor.

    Tokens, residual streams, patterns, logits and loss are compared, which takes the memory of two
    models. In float64, transformers' own conversions to float32 are skipped. The exit
    code is 1 if a difference exceeds the tolerance. Of a model that transformers itself computes,
    the proof of its sites is printed.
    """
    if choice.uses_transformers(model, table.MODEL_TYPES):
        _show_proof(model)
        return
    rows = probekit.verify_model(model, texts or verification.TEXTS, dtype=dtype)
    columns = ("tensor", "largest difference", "largest value", "ratio at a position", "")
    lines = []
    for row in rows:
        if row.site.endswith("tokens"):  # compared by counting texts
            numbers = (f"{row.difference:.0f} texts differ", f"{row.largest:.0f} texts", "")
        else:
            numbers = (f"{row.difference:.1e}", f"{row.largest:.3g}", f"{row.relative:.1e}")
        lines.append((row.site, *numbers, "" if row.agrees else "DIFFERS"))
    terminal.show_rows(columns, lines)
    differing = [row.site for row in rows if not row.agrees]
    if differing:
        raise click.ClickException(
            f"{len(differing)} of {len(rows)} tensors differ from transformers, first at "
            f"{differing[0]}. The numbers of this model are not to be trusted; please report it "
            "with its config.json."
        )
    if rows[0].site != "tokens":
        click.echo("The tokens were not compared: no vocabulary, or transformers cannot read it.")
    tolerance = verification.TOLERANCES[dtype]
    click.echo(f"All {len(rows)} tensors agree within {tolerance:g} of the largest value there.")
    if dtype == "float64":
        click.echo("Conversions of float64 to float32 in the code of transformers were skipped.")


@click.command()
@options.file_options
@options.device_option
@options.runs_option("the run is written to PATH/NAME")
def pretrain_command(file: Path, overrides: Texts, device: str, out: Path) -> None:
    """Train a small GPT-2 from a recipe.

    An interrupted run resumes where it stopped.
    """
    recipe = loader.load_recipe(file, overrides)
    with watching() as watcher:
        result = probekit.pretrain(recipe, out=out, device=device, watcher=watcher)
    last = result.last
    click.echo(
        f"step {last.step:,}: held out {last.held_out_loss:.4f} nats per token, "
        f"{last.held_out_per_character:.4f} per character"
    )
    click.echo(f"{result.model}\n{result.log}\n{result.figure}")


@click.command()
@click.option("--quick", is_flag=True, help="Fewer simulations; half a minute instead of a minute.")
def selftest_command(quick: bool) -> None:
    """Test probekit on data with known answers.

    Signals, noise and intervals, on simulated data and tiny models.
    """
    with watching() as watcher:
        checks = selftest.selftest(quick=quick, watcher=watcher)
    rows = [
        (check.check, check.kind, check.expected, check.found, "yes" if check.ok else "NO")
        for check in checks
    ]
    terminal.show_rows(terminal.words("check", "kind", "expected", "found", "ok"), rows)
    n_failed = sum(not check.ok for check in checks)
    terminal.echo(f"{counted(len(checks), 'check')}, {n_failed} failed.")
    click.echo(f"Library of large products on the CPU: {products.library()}.")
    if n_failed:
        sys.exit(1)
