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
    assert (
        run(*ARGUMENTS, "--stop", stop).stdout == run(*ARGUMENTS, "--stop", stop, "--stream").stdout
    )
    assert run(*ARGUMENTS, "--stop", stop).stdout == stopped


def test_several_texts_have_headings_and_a_seed_reproduces_them():
    drawn = [*ARGUMENTS, "--prompt", "She", "--temperature", "1", "--top-p", "0.9", "--top-k", "50"]
    first = run(*drawn, "--num-samples", "2", "--seed", "7").stdout
    headings = [line for line in first.splitlines() if line.startswith("--- prompt")]
    assert headings == [f"--- prompt {p}, sample {s} ---" for p in (1, 2) for s in (1, 2)]
    assert run(*drawn, "--num-samples", "2", "--seed", "7").stdout == first
    assert run(*drawn, "--num-samples", "2", "--seed", "8").stdout != first
    alone = run(*ARGUMENTS, *drawn[len(ARGUMENTS) + 2 :], "--seed", "7").stdout
    assert alone.strip() in first


def test_option_without_effect_is_reported():
    assert "temperature 0 always takes" in run(*ARGUMENTS, "--top-k", "5").stderr
    assert run(*ARGUMENTS, "--temperature", "1", "--top-k", "5").stderr == ""


def test_steered_texts_follow_the_text_without_steering(keep):
    probe = str(keep(projection_sd=(2.0,)))
    result = run(*ARGUMENTS, "--steer", probe, "--by", "0", "--by", "60", "--towards", "no")
    lines = result.stdout.splitlines()
    headings = [line for line in lines if line.startswith("---")]
    assert headings == [
        "--- no steering ---",
        "--- +60 sd towards no at blocks.1.hook_resid_post ---",
    ]
    plain = run(*ARGUMENTS).stdout.strip()
    assert result.stdout.startswith(f"--- no steering ---\n{plain}\n---")
    assert plain not in result.stdout.partition(headings[1])[2]
    assert "no measurement" in result.stderr


def test_empty_prompt_is_allowed_after_bos():
    assert len(run(*ARGUMENTS[:2], "--prompt", "", "--max-new-tokens", "3", "--bos").stdout) > 1
