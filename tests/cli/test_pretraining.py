"""`pretrain`: printed results, exit codes and resuming."""

import re

import pytest

from probekit.experiment.document import dump_settings


@pytest.fixture
def recipe(make_recipe, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_settings(make_recipe()))
    return path


def test_pretrain_prints_the_loss_and_the_paths(call, recipe):
    code, out, err = call("pretrain", recipe)
    assert code == 0
    message, model, *files = out.splitlines()
    assert re.fullmatch(
        r"step 12: held out \d\.\d{4} nats per token, \d\.\d{4} per character", message
    )
    assert model == "runs/tiny/checkpoints/step-0000012"
    assert files == ["runs/tiny/log.csv", "runs/tiny/losses.html"]
    assert re.search(r"step 10: loss .* [\d,]+ tokens/s", err)


def test_pretrain_continues_with_more_steps_and_report_draws_the_figure(call, recipe):
    level = ("--set", "training.decay_steps=0")
    assert call("pretrain", recipe, *level)[0] == 0
    code, out, _ = call("pretrain", recipe, *level, "--set", "training.steps=14")
    assert code == 0
    assert out.startswith("step 14:")
    assert call("report", "runs/tiny")[1] == "runs/tiny/losses.html\n"
    assert call("report", "runs/tiny", "--figures", "svg")[0] == 2
