"""`probekit weights` on the command line."""

from click.testing import CliRunner

from probekit.cli.main import cli
from probekit.pipeline.look.weights import COLUMNS, CORNER


def invoke(*arguments):
    return CliRunner().invoke(cli, ["weights", *map(str, arguments)])


def test_page_is_written_and_its_path_printed(tmp_path):
    page = tmp_path / "page.html"
    chosen = ["--tensor", "wpe.weight", "--column", "7", "--column", "9", "--out", page]
    result = invoke("--model", "mini", *chosen)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(page)
    assert "Columns 7, 9" in page.read_text()


def test_help_lists_the_defaults():
    text = invoke("--help").output
    assert f"[default: {CORNER}]" in text
    assert f"wpe.weight: {', '.join(map(str, COLUMNS))}]" in " ".join(text.split())
