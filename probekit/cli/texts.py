"""Commands that read or continue texts: generate, and apply a saved probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.amounts import format_number
from probekit.cli import options, pictures
from probekit.cli.models import model_option
from probekit.cli.options import OutputFile, Texts, later, watching
from probekit.cli.pictures import bos_option, chat_option, take_texts, texts_options, warn_of_bos
from probekit.pipeline.look.exports import ANSWER_FILES, FIGURE_FILES, PAGE_OR_ROWS

if TYPE_CHECKING:
    from probekit import accelerators, progress
    from probekit.cli import terminal
    from probekit.data import readers
    from probekit.model import generation
    from probekit.model.config import Bos
    from probekit.pipeline.compare import over as over_networks
    from probekit.pipeline.look import apply as application
    from probekit.pipeline.look import exports
    from probekit.probes.exports import table as export_table
    from probekit.probes.exports import vector as vectors
    from probekit.report.elements import texts as labels
    from probekit.report.elements import tokens
    from probekit.report.pages import doses_page, over_page, texts_page
    from probekit.results import network as measured
globals().update(later(__file__))

# Columns of predictions, in order; free text is the last one.
_OF_ALARMS = ("alarm", "alarm_score", "threshold")
_COLUMNS = ("number", "position", "label", "score", *_OF_ALARMS, "token", "text")
_WITH_SHADES = ("256", "truecolor")  # with 16 colours, pale shades cannot be distinguished


@click.command()
@model_option
@click.option(
    "--prompt", "prompts", required=True, multiple=True, help="Text to continue; repeatable."
)
@click.option(
    "--max-new-tokens", type=int, required=True, help="Maximum number of generated tokens."
)
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    help="Sampling temperature; 0 always takes the most probable token.",
)
@click.option("--top-k", type=int, help="Number of most probable tokens to sample from.")
@click.option("--top-p", type=float, help="Total probability of the tokens to sample from.")
@click.option("--num-samples", type=int, default=1, help="Number of samples per prompt.")
@click.option("--seed", type=int, default=0, help="Random seed for sampling.")
@click.option(
    "--slide", is_flag=True, help="Sliding window: drop the earliest tokens of a full context."
)
@click.option("--stop", "stops", multiple=True, help="String that ends generation; repeatable.")
@click.option("--stream", is_flag=True, help="Streaming output of a single text.")
@bos_option("the prompt")
@chat_option
@options.device_option
@click.option(
    "--steer", type=click.Path(path_type=Path), help="Probe or exported vector to steer along."
)
@click.option("--by", type=float, multiple=True, help="Dose in standard deviations; repeatable.")
@click.option(
    "--calibrate",
    type=float,
    metavar="FACTOR",
    help="Dose at which the loss on the texts of --on is this many times as large, such as 1.1.",
)
@click.option("--on", type=click.Path(path_type=Path), help="File with a plain text per line.")
@click.option(
    "--doses", type=OutputFile(*PAGE_OR_ROWS), help="Page, rows or figure of the loss by dose."
)
@pictures.with_paper
@click.option("--towards", metavar="LABEL", help="Label to steer to.  [default: the second of two]")
@click.option("--at-site", help="Steered site.  [default: the site of the probe]")
def generate_command(
    model: str,
    prompts: tuple[str, ...],
    stops: tuple[str, ...],
    stream: bool,
    bos: Bos,
    chat: bool,
    device: str,
    steer: Path | None,
    **given: Any,
) -> None:
    """Continue texts with a model, greedily or by sampling.

    The end-of-text token always ends a text.
    """
    names, paper = ("by", "towards", "at_site", "calibrate", "on", "doses"), given.pop("paper")
    steering = {name: given.pop(name) for name in names}
    # All other given options are fields of `Decoding`.
    decoding = generation.Decoding(**given)
    if decoding.temperature == 0 and (decoding.top_k or decoding.top_p or decoding.num_samples > 1):
        click.echo(
            "note: temperature 0 always takes the most probable token, so --top-k and --top-p have "
            "no effect and all samples are equal; to sample, give a --temperature, such as 1.",
            err=True,
        )
    if steer is None and any(steering.values()):
        given_names = [f"--{name.replace('_', '-')}" for name, value in steering.items() if value]
        raise click.UsageError(f"{given_names[0]} requires --steer.")
    if steer is not None and not steering["by"] and steering["calibrate"] is None:
        raise click.UsageError("--steer requires --by, a dose such as 4, or --calibrate.")
    if (steering["calibrate"] is None) != (steering["on"] is None):
        raise click.UsageError("--calibrate and --on require each other.")
    if steering["doses"] is not None and steering["on"] is None:
        raise click.UsageError("--doses requires --calibrate.")
    if stream and (steer is not None or decoding.num_samples * len(prompts) > 1):
        raise click.UsageError(
            "--stream shows a single text: give one --prompt, no --num-samples and no --steer."
        )
    accelerators.check_device(device)
    gap = "\n\n" if chat else ""  # between prompt and reply
    if steer is not None:
        how: dict[str, Any] = {"bos": bos, "chat": chat, "stop": stops}
        by_dose = _steered(model, prompts, decoding, steer, device, how, steering, paper)
        _show(prompts, by_dose, decoding, gap=gap)
        click.echo(
            "note: one text is no measurement of an effect; `probekit intervene` measures steering "
            "with intervals and controls.",
            err=True,
        )
        return
    network = probekit.load_model(model, device=device)
    tokenizer = probekit.Tokenizer.from_pretrained(model)
    warn_of_bos(tokenizer, bos)
    stop = (*stops, *tokenizer.ends_of_text)
    if not stream:
        texts = generation.continue_texts(
            network, tokenizer, prompts, decoding, bos=bos, chat=chat, stop=stop
        )
        _show(prompts, {"": texts}, decoding, gap=gap)
        return
    pieces = generation.stream_text(
        network, tokenizer, prompts[0], decoding, bos=bos, chat=chat, stop=stop
    )
    # Print the prompt with the first piece, so that an error is never printed after it.
    click.echo(prompts[0] + gap + next(pieces, ""), nl=False)
    for piece in pieces:
        click.echo(piece, nl=False)
    click.echo()


def _steered(
    model: str,
    prompts: Sequence[str],
    decoding: generation.Decoding,
    steer: Path,
    device: str,
    how: Mapping[str, Any],
    asked: Mapping[str, Any],
    paper: dict[str, Any],
) -> Mapping[str, Sequence[Sequence[generation.Continuation]]]:
    """Return the continuations without steering and at each dose, by the dose in words.

    `how` are further arguments of `steered_texts`, `asked` the options of steering, `paper` those
    of the figure.
    """
    by, towards, at_site, factor, on, doses = asked.values()
    probe = export_table.exported_probe(steer, model) or probekit.SavedProbe.load(steer)
    vector = vectors.steering_vector(probe, towards)
    with watching() as watcher:
        steered = application.load_network(probe, model, device, allow_other=False, watcher=watcher)
    warn_of_bos(steered.tokenizer, how["bos"])
    # The direction of two classes has the name of the second one, to which it leads.
    label = towards or (probe.direction_names[0] if probe.classes else "higher numbers")
    where, unit = f"towards {labels.class_label(label)} at {at_site or probe.facts.site}", "sd"
    if probe.facts.kind == vectors.KIND:  # which label it points to is not in the file
        where, unit = (
            f"along {steer.name} at {at_site or probe.facts.site}",
            "lengths of the vector",
        )
    if factor is not None:
        texts = readers.read_texts(on)
        dose, table = application.calibrated_doses(
            steered, vector, texts, factor, bos=how["bos"], site=at_site
        )
        click.echo(doses_page.doses_answer(dose, table, factor, unit), err=True)
        if doses is not None:
            facts = {
                "network": model,
                "unit of the dose": unit,
                "probe": str(steer),
                "texts": f"{len(texts):,} of {on}",
            }
            page = partial(doses_page.doses_page, dose, table, factor, where, facts, unit)
            paths = exports.write_page_or_rows(doses, page, table, paper)
            click.echo("\n".join(map(str, paths)), err=True)
        by = (*by, float(f"{dose:.3g}"))
    by_dose = {}
    # First without steering, which a given dose of 0 does not repeat.
    for dose in (0.0, *filter(None, by)):
        words = f"{dose:+.8g} {unit} {where}" if dose else "no steering"
        by_dose[words] = application.steered_texts(
            steered, prompts, decoding, vector, dose, site=at_site, **how
        )
    return by_dose


def _show(
    prompts: Sequence[str],
    by_dose: Mapping[str, Sequence[Sequence[generation.Continuation]]],
    decoding: generation.Decoding,
    *,
    gap: str,
) -> None:
    """Print each prompt with its continuations, with a heading if there are several.

    Args:
        prompts: the prompts.
        by_dose: for each dose of steering in words, or "" if nothing is steered, the continuations
            by prompt and sample.
        decoding: gives the number of samples of a prompt.
        gap: text between a prompt and its continuation.
    """
    for number, prompt in enumerate(prompts):
        for sample in range(decoding.num_samples):
            counts = [f"prompt {number + 1}"] if len(prompts) > 1 else []
            counts += [f"sample {sample + 1}"] if decoding.num_samples > 1 else []
            for dose, continuations in by_dose.items():
                heading = ": ".join(filter(None, (", ".join(counts), dose)))
                if heading:
                    click.echo(f"--- {heading} ---")
                click.echo(prompt + gap + continuations[number][sample].text)


def _once(_: click.Context, __: click.Parameter, values: tuple[float, ...]) -> float | None:
    """Return the value of an option; a usage error if it was given several times."""
    if len(values) > 1:
        raise click.BadParameter(f"it is given {len(values)} times. Give it once.")
    return values[0] if values else None


@click.command()
@click.argument("probe", type=click.Path(path_type=Path))
@texts_options
@click.option("--per", type=click.Choice(["text", "token"]), help="Unit of prediction.")
@click.option(
    "--threshold",
    type=float,
    multiple=True,
    callback=_once,
    metavar="RATE",
    help="False positive rate of a monitor's threshold, for alarms.",
)
@click.option(
    "--layers",
    is_flag=True,
    help="Map of the scores of the probes of all layers; PROBE is the folder of their run.",
)
@click.option(
    "--out",
    type=OutputFile(*ANSWER_FILES, *FIGURE_FILES, note="; figures require --layers or --over"),
    help="Output file (.html, .csv or .jsonl; with --layers or --over .pdf, .svg or .png).",
)
@pictures.with_paper
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
    help="Handling of texts that exceed the context.",
)
@click.option(
    "--over",
    multiple=True,
    metavar="NETWORK ...",
    help="Networks to compare the probe on, such as checkpoints; the first is the reference.",
)
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--on",
    type=click.Path(path_type=Path),
    help="Labelled rows for --over, with the columns of the run.  [default: its test rows]",
)
@options.device_option
def apply(
    probe: Path, per: Any, out: Path | None, over: Texts, more: Texts, on: Path | None, **given: Any
) -> None:
    """Apply a saved probe to new texts, or to several networks.

    It predicts a label and a score per text or per token, and with --threshold an alarm. With
    --over it shows how AUROC, scores and rates of the probe change from network to network. With
    --layers it draws the score of each layer's probe of a run at each token.
    """
    if not over and (more or on):
        named = "--on" if on else f"An argument after PROBE ({' '.join(more)})"
        raise click.UsageError(f"{named} requires --over.")
    if over:
        _apply_over(probe, (*over, *more), on, out, given | {"per": per})
        return
    paper = given.pop("paper")
    if given.pop("layers"):
        _apply_layers(probe, out, paper, given | {"per": per})
        return
    if out is not None and out.suffix in FIGURE_FILES:
        raise click.UsageError(f"--out {out} is a figure, which requires --layers or --over.")
    texts, saved = take_texts(given), probekit.SavedProbe.load(probe)
    application.check_saved_probe(probe)
    per = application.choose_per(saved, per)
    with watching() as watcher:
        readings = probekit.apply_probe(saved, texts, watcher=watcher, **given)
    for sentence in application.caution(saved, per):
        terminal.echo(f"note: {sentence}", err=True)
    if out is not None:
        click.echo(str(exports.write_answers(out, readings, saved, per)))
        return
    console = progress.Console()
    has_shades = console.color_system in _WITH_SHADES and not console.no_color
    if console.is_terminal and has_shades:
        _paint_answers(console, readings, saved.classes, per)
        return
    rows = measured.tidy_rows(readings, saved.classes, per)
    names = [name for name in _COLUMNS if any(name in row for row in rows)]
    click.echo("\t".join(names))
    for row in rows:
        click.echo("\t".join(_cell(name, row.get(name)) for name in names))


def _apply_layers(run: Path, out: Path | None, paper: Any, given: dict[str, Any]) -> None:
    """Write the scores of the probes of all layers of a run as a page, figures or rows."""
    if out is None:
        raise click.UsageError(f"--layers requires --out ({', '.join(PAGE_OR_ROWS)}).")
    exports.check_ending(out, PAGE_OR_ROWS)
    for name in ("per", "threshold"):
        if given.pop(name) is not None:
            raise click.UsageError(f"--layers excludes --{name}.")
    texts, (probe, probes) = take_texts(given), application.layer_probes(run)
    with watching() as watcher:
        found = application.apply_probes(probes, texts, watcher=watcher, **given)
    layers = list(zip(probes, found, strict=True))
    for sentence in application.caution(probe, "token"):
        terminal.echo(f"note: {sentence}", err=True)
    page, rows = partial(texts_page.layers_page, probe, layers), texts_page.layers_rows(layers)
    click.echo("\n".join(map(str, exports.write_page_or_rows(out, page, rows, paper))))


def _apply_over(
    probe: Path, networks: Texts, on: Path | None, out: Path | None, given: Mapping[str, Any]
) -> None:
    """Print the numbers of a saved probe on networks, and write them as a page or as rows."""
    used = {name: given[name] for name in ("threshold", "device")}
    defaults = {"too_long": "error", "paper": given["paper"], **used}
    if names := [name for name, value in given.items() if value and value != defaults.get(name)]:
        option = names[0].replace("texts", "text").replace("_", "-")
        raise click.UsageError(f"--over excludes --{option}.")
    if out is not None:
        exports.check_ending(out, PAGE_OR_ROWS)
    with watching() as watcher:
        found = over_networks.apply_over(probe, networks, on=on, watcher=watcher, **used)
    for note in found.notes:
        terminal.echo(f"warning: {note}", err=True)
    terminal.show_table(over_page.over_table(found.rows))
    about = found.rows, found.positive, found.threshold
    terminal.echo("\n" + " ".join(over_page.over_answer(*about)))
    if out is not None:
        page = partial(over_page.over_page, *about, found.notes, found.facts)
        click.echo(
            "\n".join(map(str, exports.write_page_or_rows(out, page, found.rows, given["paper"])))
        )


@click.command()
@click.argument("probe", type=click.Path(path_type=Path))
@click.option(
    "--to", required=True, help="plain, torch, sklearn, onnx, vllm_hook, vllm_vector, gguf."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option(
    "--towards",
    metavar="LABEL",
    help="Label that a steering vector points to.  [default: the second of two]",
)
@click.option("--by", type=float, default=1.0, help="Length of a vector in standard deviations.")
def export(probe: Path, out: Path, **given: Any) -> None:
    """Write a saved probe for another tool, with a description.

    plain is a safetensors file of weight, bias and facts; vllm_hook and vllm_vector are for
    vLLM-Lens, gguf is a control vector of llama.cpp and repeng.
    """
    saved = probekit.SavedProbe.load(probe)
    application.check_saved_probe(probe)
    for path in export_table.export_probe(saved, out, **given):
        click.echo(str(path))


def _cell(column: str, value: object) -> str:
    """Return a value as the text of its column; "-" without a value."""
    if value is None:
        return "-"
    if column == "token":
        return labels.token_label(str(value))
    return f"{value:.4f}" if isinstance(value, float) else labels.line_label(str(value))


def _paint_answers(
    console: progress.Console,
    readings: Sequence[measured.TextReading],
    classes: Sequence[str],
    per: measured.Per,
) -> None:
    """Print the texts, with tokens or answers in the colours of their scores, and a legend."""
    from rich.text import Text

    palette = tokens.Palette.of(readings, classes)
    for number, reading in enumerate(readings, start=1):
        pieces: list[tuple[str, str]] = [(f"{number} ", "dim")]
        if per == "token":
            for token, answer in zip(reading.tokens, reading.answers, strict=True):
                pieces.append((labels.line_label(token), _style(palette.paint(answer))))
                if len(classes) > 2:
                    pieces.append((f"/{labels.line_label(answer.label or '')}", "dim"))
                pieces += [("\n", "")] * ("\n" in token)
        elif reading.answer is None:
            pieces.append((f"- {labels.line_label(reading.text)}", ""))
        else:
            text = f" {labels.line_label(reading.answer.text)} "
            pieces.append((text, _style(palette.paint(reading.answer))))
            pieces.append((f" {labels.line_label(reading.text)}", ""))
        console.print(Text.assemble(*pieces), overflow="fold")
    pieces = []
    if not classes:
        limits = f" {format_number(palette.low)} to {format_number(palette.high)}"
        pieces = [(" number ", _style(tokens.Paint(tokens.NUMBER, 1.0))), (limits, "dim")]
    for name in classes:
        paint = tokens.Paint(palette.hue(name), 1.0)
        pieces += [(f" {labels.line_label(name)} ", _style(paint)), (" ", "")]
    if len(classes) == 2:
        strongest = f"palest at score 0, strongest from ±{format_number(palette.high)}"
        pieces.append((strongest, "dim"))
    console.print(Text.assemble(*pieces))


def _style(paint: tokens.Paint) -> str:
    return f"#000000 on {paint.on_white}"
