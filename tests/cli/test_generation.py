"""`probekit generate` on the command line."""

import pytest

ARGUMENTS = ["--model", "mini", "--prompt", "The old man", "--max-new-tokens", "12"]


@pytest.fixture
def run(call):
    return lambda *arguments: call("generate", *arguments).stdout


def test_single_text_is_printed_without_a_heading(run):
    whole = run(*ARGUMENTS)
    assert whole.startswith("The old man")
    assert len(whole) > 30
    assert run(*ARGUMENTS, "--stream") == whole
    stop = whole[20:22]
    stopped = whole.partition(stop)[0] + "\n"
    for options in ((), ("--stream",)):
        assert run(*ARGUMENTS, "--stop", stop, *options) == stopped


def test_several_texts_have_headings_and_a_seed_reproduces_them(run):
    drawn = [*ARGUMENTS, "--prompt", "She", "--temperature", "1", "--top-p", "0.9", "--top-k", "50"]
    first = run(*drawn, "--num-samples", "2", "--seed", "7")
    headings = [line for line in first.splitlines() if line.startswith("--- prompt")]
    assert headings == [f"--- prompt {p}, sample {s} ---" for p in (1, 2) for s in (1, 2)]
    assert run(*drawn, "--num-samples", "2", "--seed", "7") == first
    assert run(*drawn, "--num-samples", "2", "--seed", "8") != first
    alone = run(*ARGUMENTS, *drawn[len(ARGUMENTS) + 2 :], "--seed", "7")
    assert alone.strip() in first
