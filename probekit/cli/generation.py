"""`probekit generate`: continuing texts with a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.cli.options import ModelName, together

if TYPE_CHECKING:
    from probekit.model.generation import Continuation, Decoding

_DECODING = (
    click.option(
        "--max-new-tokens", type=int, required=True, help="Maximum number of generated tokens."
    ),
    click.option(
        "--temperature",
        type=float,
        default=0.0,
        show_default=True,
        help="Sampling temperature; 0 always takes the most probable token.",
    ),
    click.option("--top-k", type=int, help="Number of most probable tokens to sample from."),
    click.option(
        "--top-p", type=float, help="Total probability of the most probable tokens to sample from."
    ),
    click.option(
        "--num-samples",
        type=int,
        default=1,
        show_default=True,
        help="Number of samples per prompt.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Random seed for sampling."
    ),
    click.option(
        "--slide",
        is_flag=True,
        help="Sliding window: drop the earliest tokens when the context is full.",
    ),
)


def _decoding_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the decoding options to a command and pass it the `Decoding`."""

    @wraps(function)
    def with_decoding(
        max_new_tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        num_samples: int,
        seed: int,
        slide: bool,
        **others: Any,
    ) -> None:
        from probekit.model.generation import Decoding

        decoding = Decoding(
            max_new_tokens,
            temperature,
            top_k,
            top_p,
            num_samples=num_samples,
            seed=seed,
            slide=slide,
        )
        if temperature == 0 and (top_k or top_p or num_samples > 1):
            click.echo(
                "note: temperature 0 always takes the most probable token, so --top-k, --top-p and "
                "--num-samples have no effect; to sample, give a --temperature, such as 1.",
                err=True,
            )
        function(decoding=decoding, **others)

    for option in reversed(_DECODING):
        with_decoding = option(with_decoding)
    return with_decoding


@dataclass(frozen=True)
class _Steering:
    """Probe, doses, label and site of `--steer`."""

    probe: Path
    by: tuple[float, ...]
    towards: str | None
    site: str | None


def _steering_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of steering to a command and pass it the `_Steering`, or None."""

    @together(
        click.option(
            "--steer", type=click.Path(path_type=Path), help="Saved probe to steer along."
        ),
        click.option(
            "--by",
            type=float,
            multiple=True,
            help="Dose in standard deviations of the probe's projection; repeatable.",
        ),
        click.option(
            "--towards",
            metavar="LABEL",
            help="Label to steer to.  [default: the second of two labels]",
        ),
        click.option("--at-site", help="Steered site.  [default: the site of the probe]"),
    )
    @wraps(function)
    def with_steering(
        steer: Path | None,
        by: tuple[float, ...],
        towards: str | None,
        at_site: str | None,
        **others: Any,
    ) -> None:
        if steer is None and (by or towards or at_site):
            raise click.UsageError("--by, --towards and --at-site require --steer.")
        if steer is not None and not by:
            raise click.UsageError("--steer requires --by, a dose such as 4.")
        steering = None if steer is None else _Steering(steer, by, towards, at_site)
        function(steering=steering, **others)

    return with_steering


@click.command()
@click.option(
    "--model",
    "source",
    type=ModelName(),
    required=True,
    help="Model: `mini`, a hub name or a folder.",
)
@click.option(
    "--prompt", "prompts", required=True, multiple=True, help="Text to continue; repeatable."
)
@_decoding_options
@click.option("--stop", "stops", multiple=True, help="String that ends generation; repeatable.")
@click.option(
    "--stream", is_flag=True, help="Streaming output; for a single prompt and sample only."
)
@click.option(
    "--bos/--no-bos",
    default=False,
    show_default=True,
    help="Whether to prepend the beginning-of-text token to the prompt.",
)
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
@_steering_options
def generate_command(
    source: str,
    prompts: tuple[str, ...],
    decoding: Decoding,
    stops: tuple[str, ...],
    stream: bool,
    bos: bool,
    device: str,
    steering: _Steering | None,
) -> None:
    """Continue texts with a model, greedily or by sampling; end-of-text always ends a text."""
    from probekit.model.families.table import load_model
    from probekit.model.generation import continue_texts, stream_text
    from probekit.model.text.tokenizer import Tokenizer
    from probekit.pipeline.capture.devices import check_device

    if stream and decoding.num_samples * len(prompts) > 1:
        raise click.UsageError(
            "--stream shows a single text: give one --prompt and no --num-samples."
        )
    if stream and steering is not None:
        raise click.UsageError("--stream shows a single text, and --steer shows several.")
    check_device(device)
    if steering is not None:
        _show_steered(source, prompts, decoding, stops, bos, device, steering)
        return
    model = load_model(source, device=device)
    tokenizer = Tokenizer.from_pretrained(source)
    stop = (*stops, *tokenizer.ends_of_text)
    if stream:
        pieces = stream_text(model, tokenizer, prompts[0], decoding, bos=bos, stop=stop)
        _show_stream(prompts[0], pieces)
    else:
        _show(prompts, continue_texts(model, tokenizer, prompts, decoding, bos=bos, stop=stop))


def _show_steered(
    source: str,
    prompts: Sequence[str],
    decoding: Decoding,
    stop: Sequence[str],
    bos: bool,
    device: str,
    steering: _Steering,
) -> None:
    """Print the texts without steering, then those of each dose."""
    from probekit.cli.show.progress import watching
    from probekit.pipeline.look.apply import load_network
    from probekit.pipeline.look.steering import steered_texts, steering_vector
    from probekit.probes.saved_probe import SavedProbe
    from probekit.report.texts import class_label

    probe = SavedProbe.load(steering.probe)
    vector = steering_vector(probe, steering.towards)
    with watching() as watcher:
        network = load_network(probe, source, device, False, watcher)
    towards = steering.towards or (probe.direction_names[0] if probe.classes else "higher numbers")
    site = steering.site or probe.facts.site
    doses = (0.0, *(dose for dose in steering.by if dose))
    found = [
        steered_texts(
            network, prompts, decoding, vector, dose, bos=bos, stop=stop, site=steering.site
        )
        for dose in doses
    ]
    for number, prompt in enumerate(prompts):
        for sample in range(decoding.num_samples):
            which = _which(number, sample, len(prompts), decoding.num_samples)
            for dose, continuations in zip(doses, found, strict=True):
                how = (
                    f"{dose:+g} sd towards {class_label(towards)} at {site}"
                    if dose
                    else "no steering"
                )
                click.echo(f"--- {which}{how} ---")
                click.echo(prompt + continuations[number][sample].text)
    click.echo(
        "note: one text is no measurement of an effect; `probekit cause` measures steering with "
        "intervals and controls.",
        err=True,
    )


def _which(number: int, sample: int, n_prompts: int, n_samples: int) -> str:
    """Return the beginning of a heading; "" for a single text.

    >>> _which(0, 1, 2, 3), _which(0, 0, 1, 1)
    ('prompt 1, sample 2: ', '')
    """
    parts = [f"prompt {number + 1}"] * (n_prompts > 1) + [f"sample {sample + 1}"] * (n_samples > 1)
    return f"{', '.join(parts)}: " if parts else ""


def _show_stream(prompt: str, pieces: Iterator[str]) -> None:
    # Print the prompt with the first piece, so that an error is never printed after it.
    click.echo(prompt + next(pieces, ""), nl=False)
    for piece in pieces:
        click.echo(piece, nl=False)
    click.echo()


def _show(prompts: Sequence[str], continuations: Sequence[Sequence[Continuation]]) -> None:
    """Print each prompt with its continuation, with a heading if there are several."""
    several = len(continuations) * len(continuations[0]) > 1
    for number, (prompt, samples) in enumerate(zip(prompts, continuations, strict=True), start=1):
        for sample, continuation in enumerate(samples, start=1):
            if several:
                click.echo(f"--- prompt {number}, sample {sample} ---")
            click.echo(prompt + continuation.text)
