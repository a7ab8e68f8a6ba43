"""`probekit --version`: distribution, folder of the package, and versions."""

from __future__ import annotations

import click


def _show(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print the versions and exit if the option is given."""
    if not is_given or ctx.resilient_parsing:
        return
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from probekit.provenance import PACKAGE, origin, origin_warnings

    try:
        torch = version("torch")  # from its metadata: importing torch takes seconds
    except PackageNotFoundError:
        torch = "not installed"
    own = origin()
    click.echo(f"{own.name} {own.version}")
    click.echo(f"package  {PACKAGE}")
    click.echo(f"Python   {platform.python_version()}")
    click.echo(f"torch    {torch}")
    for warning in origin_warnings():
        click.echo(f"Warning: {warning}.", err=True)
    ctx.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show,
    help="Show distribution, folder and versions, and exit.",
)
