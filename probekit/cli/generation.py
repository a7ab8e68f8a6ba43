"""`probekit generate`: a model goes on with what it is given."""

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
    click.option("--max-new-tokens", type=int, required=True, help="How many to add, at most."),
    click.option(
        "--temperature",
        type=float,
        default=0.0,
        show_default=True,
        help="0 takes the most probable token; higher draws more evenly.",
    ),
    click.option("--top-k", type=int, help="Draw among the K most probable tokens only."),
    click.option("--top-p", type=float, help="Draw among the most probable that sum to P only."),
    click.option("--num-samples", type=int, default=1, show_default=True, help="For each prompt."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the draws."),
    click.option("--slide", is_flag=True, help="Beyond the context, let the earliest tokens go."),
)


def _decoding_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how tokens are chosen, and give the function the `Decoding`."""

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

        how = Decoding(
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
                "--num-samples change nothing; to draw, give a --temperature, such as 1.",
                err=True,
            )
        function(how=how, **others)

    for option in reversed(_DECODING):
        with_decoding = option(with_decoding)
    return with_decoding


@click.command()
@click.option(
    "--model",
    "source",
    type=ModelName(),
    required=True,
    help="`mini`, a hub name or a folder.",
)
@click.option(
    "--prompt", "prompts", required=True, multiple=True, help="To go on with; repeatable."
)
@_decoding_options
@click.option("--stop", "stops", multiple=True, help="Ends a text where it comes up; repeatable.")
@click.option("--stream", is_flag=True, help="Show the text as it comes; for one sample.")
@click.option("--bos/--no-bos", default=False, show_default=True, help="Begin with <|endoftext|>.")
@click.option("--device", default="cpu", help="Where the model computes, e.g. cuda.")
def generate_command(
    source: str,
    prompts: tuple[str, ...],
    how: Decoding,
    stops: tuple[str, ...],
    stream: bool,
    bos: bool,
    device: str,
) -> None:
    """Continue texts with a model, greedily or by chance; <|endoftext|> always ends one."""
    from probekit.model.generation.continuation import continue_texts, stream_text
    from probekit.model.gpt2 import GPT2
    from probekit.model.text.tokenizer import END_OF_TEXT, Tokenizer
    from probekit.pipeline.capture.devices import check_device

    if stream and how.num_samples * len(prompts) > 1:
        raise click.UsageError(
            "--stream shows one text as it comes: give one --prompt, and no --num-samples."
        )
    check_device(device)
    model = GPT2.from_pretrained(source, device=device)
    tokenizer = Tokenizer.from_pretrained(source)
    stop = (*stops, END_OF_TEXT)
    if stream:
        pieces = stream_text(model, tokenizer, prompts[0], how, bos=bos, stop=stop)
        _show_as_it_comes(prompts[0], pieces)
    else:
        _show(prompts, continue_texts(model, tokenizer, prompts, how, bos=bos, stop=stop))


def _show_as_it_comes(prompt: str, pieces: Iterator[str]) -> None:
    # The prompt waits for the first piece, lest a refusal stand behind it.
    click.echo(prompt + next(pieces, ""), nl=False)
    for piece in pieces:
        click.echo(piece, nl=False)
    click.echo()


def _show(prompts: Sequence[str], found: Sequence[Sequence[Continuation]]) -> None:
    """Print each prompt with its continuation; where there are several, a heading before each."""
    several = len(found) * len(found[0]) > 1
    for number, (prompt, samples) in enumerate(zip(prompts, found, strict=True), start=1):
        for sample, continuation in enumerate(samples, start=1):
            if several:
                click.echo(f"--- prompt {number}, sample {sample} ---")
            click.echo(prompt + continuation.text)
