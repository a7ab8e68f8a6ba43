"""`probekit generate` on the command line."""

import pytest

ARGUMENTS = ["--model", "mini", "--prompt", "The old man", "--max-new-tokens", "12"]


@pytest.fixture
def run(call):
    return lambda *arguments: call("generate", *ARGUMENTS, *arguments).stdout


def test_single_text_is_printed_without_a_heading(run):
    whole = run()
    assert whole.startswith("The old man")
    assert run("--stream") == whole
    stop = whole[20:22]
    for options in ((), ("--stream",)):
        assert run("--stop", stop, *options) == whole.partition(stop)[0] + "\n"


def test_several_texts_have_headings_and_a_seed_reproduces_them(run):
    drawn = ["--temperature", "1", "--top-p", "0.9", "--top-k", "50", "--seed", "7"]
    several = run("--prompt", "She", "--num-samples", "2", *drawn)
    headings = [line for line in several.splitlines() if line.startswith("--- prompt")]
    assert headings == [f"--- prompt {p}, sample {s} ---" for p in (1, 2) for s in (1, 2)]
    assert run(*drawn).strip() in several
    assert run(*drawn[:-1], "8").strip() not in several
