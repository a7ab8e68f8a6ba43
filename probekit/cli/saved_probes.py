"""`probekit apply`, which applies a saved probe to new texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from probekit.cli.options import OutputFile, texts_options
from probekit.pipeline.look.exports import ANSWER_FILES


@click.command()
@click.argument("probe", type=click.Path(path_type=Path))
@texts_options
@click.option("--per", type=click.Choice(["text", "token"]), help="Unit of prediction.")
@click.option("--out", type=OutputFile(*ANSWER_FILES), help="Output file (.html, .csv or .jsonl).")
@click.option("--model", help="Current location of the probe's model.")
@click.option(
    "--allow-other-model",
    is_flag=True,
    help="Permission to use a model other than the one the probe was fitted on.",
)
@click.option(
    "--too-long",
    type=click.Choice(["error", "truncate", "skip"]),
    default="error",
    show_default=True,
    help="Handling of texts that exceed the context.",
)
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
def apply(
    probe: Path,
    texts: tuple[str, ...],
    per: Any,
    out: Path | None,
    model: str | None,
    allow_other_model: bool,
    too_long: Any,
    device: str,
) -> None:
    """Apply a saved probe to new texts: a label and a score per text or per token."""
    from probekit.results.saved_probes import load_probe

    saved = load_probe(probe)

    from probekit.cli.show.answers import show_answers
    from probekit.cli.show.progress import watching
    from probekit.pipeline.look.apply import apply_probe, caution, choose_per
    from probekit.pipeline.look.exports import write_answers

    per = choose_per(saved, per)
    with watching() as watcher:
        readings = apply_probe(
            saved,
            texts,
            model=model,
            device=device,
            allow_other_model=allow_other_model,
            too_long=too_long,
            watcher=watcher,
        )
    for sentence in caution(saved, per):
        click.echo(f"note: {sentence}", err=True)
    if out is not None:
        click.echo(str(write_answers(out, readings, saved, per)))
        return
    show_answers(readings, saved, per)
