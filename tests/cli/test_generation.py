"""`probekit generate` on the command line."""

import sys

import pytest
from click.testing import CliRunner

from probekit.cli.main import cli, main

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "4"], "require --steer"),
        (["--steer", "probe"], "requires --by"),
        (["--steer", "probe", "--by", "4", "--stream"], "no --steer"),
    ],
)
def test_incomplete_options_of_steering_are_refused(arguments, message):
    result = CliRunner().invoke(cli, ["generate", *ARGUMENTS, *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_empty_prompt_is_allowed_after_bos():
    assert len(run(*ARGUMENTS[:2], "--prompt", "", "--max-new-tokens", "3", "--bos").stdout) > 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--top-k", "0"], 2, "top_k must be an integer of at least 1"),
        (["--seed", "-1"], 2, "seed must be an integer from 0 to 4294967295"),
        (["--stop", ""], 2, "non-empty"),
        (["--prompt", ""], 2, "Prompt 2 is empty"),
        (["--max-new-tokens", "300"], 2, "request at most 254 new ones"),
        (["--stream", "--num-samples", "2"], 2, "--stream shows"),
        (["--model", "gpt-2"], 3, "Nearest: gpt2"),
        (["--device", "warp"], 2, "--device warp"),
    ],
    ids=str,
)
def test_each_error_has_one_message_and_its_exit_code(
    monkeypatch, capsys, arguments, code, message
):
    monkeypatch.setattr(sys, "argv", ["probekit", "generate", *ARGUMENTS, *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    assert end.value.code == code, out.err
    assert message in out.err
    assert out.out == ""
