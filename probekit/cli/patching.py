"""`probekit patch`: activation patching of one pair of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from probekit.cli.options import IntegerInRange, ModelName, OutputFile
from probekit.pipeline.look.endings import PAGE_OR_ROWS


@click.command()
@click.option(
    "--model", type=ModelName(), required=True, help="Model: `mini`, a hub name or a folder."
)
@click.option("--clean", required=True, help="Base text.")
@click.option(
    "--corrupt", required=True, help="Counterfactual text, with as many tokens as the base text."
)
@click.option(
    "--answer", required=True, help="Right token after the base text, with the space before a word."
)
@click.option("--wrong", required=True, help="Token whose logit is subtracted.")
@click.option(
    "--site",
    "sites",
    multiple=True,
    metavar="SITE",
    help="Name or glob of sites, patched at each token; repeatable.  [default: the residual stream "
    "after each block]",
)
@click.option("--heads", is_flag=True, help="Patches of each head at all tokens, too.")
@click.option(
    "--attribution",
    is_flag=True,
    help="Estimates of all patches from gradients; only the --top largest are patched.",
)
@click.option(
    "--top",
    type=IntegerInRange(min=1),
    default=10,
    show_default=True,
    help="Number of patches in each table and, with --attribution, of verified estimates.",
)
@click.option(
    "--bos/--no-bos",
    default=False,
    show_default=True,
    help="Whether to prepend the beginning-of-text token to both texts.",
)
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
@click.option(
    "--out", type=OutputFile(*PAGE_OR_ROWS), help="Output file: .html (page) or .csv (rows)."
)
def patch_command(
    model: str,
    sites: tuple[str, ...],
    attribution: bool,
    top: int,
    bos: bool,
    device: str,
    out: Path | None,
    **given: Any,
) -> None:
    """Patch activations of a corrupt text into the pass of a clean text, site by site.

    Prints the strongest effects on the logit difference; --out writes the maps of all patches.
    """
    from probekit.analysis.logits import SITES
    from probekit.cli.show.looks import facts_for_page, show_pair
    from probekit.pipeline.look.exports import write_page_or_rows
    from probekit.pipeline.look.lenses import ModelAndTokenizer
    from probekit.pipeline.look.pairs import patch_pair
    from probekit.report.pages.causes.pair_page import pair_page

    network = ModelAndTokenizer.load(model, device)
    verify = top if attribution else None
    pair = patch_pair(network, **given, bos=bos, sites=sites or SITES, verify=verify)
    show_pair(pair, top)
    if out is not None:
        facts = facts_for_page(network, bos)
        write_page_or_rows(out, lambda: pair_page(pair, model=model, facts=facts), pair.rows)
        click.echo(str(out))
