"""`probekit generate`: continuing texts with a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from probekit.cli.options import ModelName

if TYPE_CHECKING:
    from probekit.model.generation.continuation import Continuation
    from probekit.model.generation.decoding import Decoding

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
        from probekit.model.generation.decoding import Decoding

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
    help="Whether to prepend <|endoftext|> to the prompt.",
)
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
def generate_command(
    source: str,
    prompts: tuple[str, ...],
    decoding: Decoding,
    stops: tuple[str, ...],
    stream: bool,
    bos: bool,
    device: str,
) -> None:
    """Continue texts with a model, greedily or by sampling; end-of-text always ends a text."""
    from probekit.model.generation.continuation import continue_texts, stream_text
    from probekit.model.load import load_model
    from probekit.model.text.tokenizer import Tokenizer
    from probekit.pipeline.capture.devices import check_device

    if stream and decoding.num_samples * len(prompts) > 1:
        raise click.UsageError(
            "--stream shows a single text: give one --prompt and no --num-samples."
        )
    check_device(device)
    model = load_model(source, device=device)
    tokenizer = Tokenizer.from_pretrained(source)
    stop = (*stops, *tokenizer.ends_of_text)
    if stream:
        pieces = stream_text(model, tokenizer, prompts[0], decoding, bos=bos, stop=stop)
        _show_stream(prompts[0], pieces)
    else:
        _show(prompts, continue_texts(model, tokenizer, prompts, decoding, bos=bos, stop=stop))


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
