"""`probekit generate` on the command line."""

from click.testing import CliRunner

from probekit.cli.main import cli

ARGUMENTS = ["--model", "mini", "--prompt", "The old man", "--max-new-tokens", "12"]


def run(*arguments):
    result = CliRunner().invoke(cli, ["generate", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_single_text_is_printed_without_a_heading():
    whole = run(*ARGUMENTS).stdout
    assert whole.startswith("The old man")
    assert len(whole) > 30
    assert run(*ARGUMENTS, "--stream").stdout == whole
    stop = whole[20:22]
    stopped = whole.partition(stop)[0] + "\n"
    for options in ((), ("--stream",)):
        assert run(*ARGUMENTS, "--stop", stop, *options).stdout == stopped


def test_several_texts_have_headings_and_a_seed_reproduces_them():
    drawn = [*ARGUMENTS, "--prompt", "She", "--temperature", "1", "--top-p", "0.9", "--top-k", "50"]
    first = run(*drawn, "--num-samples", "2", "--seed", "7").stdout
    headings = [line for line in first.splitlines() if line.startswith("--- prompt")]
    assert headings == [f"--- prompt {p}, sample {s} ---" for p in (1, 2) for s in (1, 2)]
    assert run(*drawn, "--num-samples", "2", "--seed", "7").stdout == first
    assert run(*drawn, "--num-samples", "2", "--seed", "8").stdout != first
    alone = run(*ARGUMENTS, *drawn[len(ARGUMENTS) + 2 :], "--seed", "7").stdout
    assert alone.strip() in first
