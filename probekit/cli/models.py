"""Commands about a model: its sites, its parameter counts, and its check against transformers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.amounts import percent
from probekit.cli import options
from probekit.cli.later import later
from probekit.cli.options import ModelName
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit.analysis import verification
    from probekit.cli.show import looks, terminal
    from probekit.model import config as configs
    from probekit.model.families import table
    from probekit.report.elements import table as tables
globals().update(later(__file__))

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # of a parameter


@click.command()
@click.argument("model", type=ModelName())
def sites(model: str) -> None:
    """List the sites of a model with name, shape and formula."""
    looks.show_sites(model)


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
    terminal.show_table(tables.ResultTable("", columns, rows))
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
def verify_model_command(model: str, texts: tuple[str, ...], dtype: str) -> None:
    """Compare MODEL with transformers, tensor by tensor.

    Tokens, residual streams, patterns, logits and loss are compared, which takes the memory of two
    models. In float64, transformers' own conversions to float32 are skipped. The exit
    code is 1 if a difference exceeds the tolerance.
    """
    rows = probekit.verify_model(model, texts or verification.TEXTS, dtype=dtype)
    columns = ("tensor", "largest difference", "largest value", "ratio at a position", "")
    terminal.show_table(tables.ResultTable("", columns, list(map(_agreement_cells, rows))))
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


def _agreement_cells(row: verification.Agreement) -> tuple[str, ...]:
    """Return a comparison as the cells of a row: tensor, three numbers, and whether it differs.

    Tokens are compared by counting texts.
    """
    if row.site.endswith("tokens"):
        numbers = (f"{row.difference:.0f} texts differ", f"{row.largest:.0f} texts", "")
    else:
        numbers = (f"{row.difference:.1e}", f"{row.largest:.3g}", f"{row.relative:.1e}")
    return (row.site, *numbers, "" if row.agrees else "DIFFERS")
