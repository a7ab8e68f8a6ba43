"""Complete pretraining runs: their models, resuming, and refused changes."""

import json
import shutil
from functools import partial

import pytest
import torch
from filelock import FileLock
from transformers import GPT2LMHeadModel

import probekit
from probekit.errors import CheckpointError, ConfigError
from probekit.experiment.document import dump_settings
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.checkpoint import file_checks
from probekit.model.weights.sources import MINI
from probekit.pipeline.pretrain import pretrain
from probekit.training.run_files import find_checkpoints, read_log
from tests.damage import flipped
from tests.training.recipes import tiny_recipe, write_corpus
from tests.training.test_loop import Killer


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A function that returns the recipe of the tiny run with some values changed."""
    return partial(tiny_recipe, write_corpus(tmp_path_factory.mktemp("corpus") / "texts"))


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """A finished run."""
    return pretrain(recipe(), out=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def go(tmp_path):
    return lambda recipe, name="runs", **options: pretrain(recipe, out=tmp_path / name, **options)


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of the finished run, which `go` resumes."""
    return shutil.copytree(whole.folder, tmp_path / "runs" / "tiny")


def losses(result):
    return [row.loss for row in read_log(result.folder / "log.csv")]


def digest(source):
    return Tokenizer.from_pretrained(source).digest


def test_each_checkpoint_can_be_loaded_by_transformers(whole):
    kept = find_checkpoints(whole.folder)
    assert sorted(kept) == [0, 6, 12]
    assert whole.model == kept[12]
    tokenizer = Tokenizer.from_pretrained(whole.model)
    tokens = torch.from_numpy(tokenizer.encode("The key to old", bos=False).ids)[None]
    ours = GPT2.from_pretrained(whole.model)(tokens)
    theirs = GPT2LMHeadModel.from_pretrained(whole.model).eval()(tokens).logits
    assert (ours - theirs).abs().max() < 1e-5
    assert (ours - GPT2.from_pretrained(kept[0])(tokens)).abs().max() > 1e-3


def test_killed_run_resumes_to_identical_losses_and_files(go, recipe, whole):
    with pytest.raises(KeyboardInterrupt):
        go(recipe(), watcher=Killer(7))
    resumed = go(recipe())
    for name in ("model.safetensors", "vocab.json"):
        assert (whole.model / name).read_bytes() == (resumed.model / name).read_bytes()
    assert losses(whole) == losses(resumed)


def test_more_steps_continue_a_finished_run(go, recipe):
    def with_steps(steps):
        return recipe(training=recipe().training.model_dump() | {"steps": steps, "decay_steps": 0})

    first, more = (go(with_steps(steps)) for steps in (12, 16))
    assert (first.last.step, more.last.step) == (12, 16)
    assert losses(more) == losses(go(with_steps(16), "at_once"))


def test_different_recipe_does_not_resume_the_folder(go, recipe, finished, refused):
    for changes in (
        {"training__batch": 8},
        {"model__n_layer": 3},
        {"corpus__held_out": 0.2},
        # Schedules that change completed steps, or end before them.
        {"training__steps": 20},
        {"training__steps": 6, "checkpoints": {}},
    ):
        refused(go, recipe(**changes))
    (finished / "recipe.yaml").unlink()  # the run keeps its recipe elsewhere, too
    refused(go, recipe(seed=1))


def test_changed_texts_are_refused(go, make_recipe, corpus, refused):
    go(make_recipe())
    (corpus / "a.txt").write_text((corpus / "a.txt").read_text() + " One sentence more.")
    refused(go, make_recipe())


def test_vocabulary_of_another_model_in_any_layout_is_copied_to_checkpoints_in_float16(
    go, recipe, whole, tmp_path
):
    source = shutil.copytree(MINI, tmp_path / "source")
    (source / "vocab.json").rename(source / "encoder.json")
    (source / "merges.txt").rename(source / "vocab.bpe")
    result = go(recipe(vocabulary={"source": str(source)}, checkpoints={"dtype": "float16"}))
    assert GPT2.from_pretrained(result.model).config.vocab_size == 8192
    assert digest(result.model) == digest("mini")
    by_name = go(recipe(vocabulary={"source": "mini"}), "by_name")
    assert digest(by_name.model) == digest("mini")
    sizes = [(r.model / "model.safetensors").stat().st_size for r in (result, by_name)]
    assert sizes[0] < 0.6 * sizes[1]
    sources = [json.loads((run.folder / "run.json").read_text()) for run in (by_name, whole)]
    compared = {"vocab.json": "digests.json", "merges.txt": "digests.json"}
    assert [record["vocabulary_source"] for record in sources] == [
        {"source": "mini", "compared_with": compared},
        {"source": None, "compared_with": {}},
    ]


def test_vocabulary_of_a_run_without_steps_is_not_reused(go, recipe):
    with pytest.raises(KeyboardInterrupt):
        go(recipe(), watcher=Killer(1))
    assert GPT2.from_pretrained(go(recipe(vocabulary__size=280)).model).config.vocab_size == 280


def test_record_lists_the_inputs_of_the_run(whole):
    record = json.loads((whole.folder / "run.json").read_text())
    assert record["texts"] == ["a.txt", "b.txt"]
    model = GPT2.from_pretrained(whole.model)
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert set(record["digests"]) == {"corpus", "vocabulary", "tokens"}
    assert whole.log.is_file()
    assert whole.figure.is_file()


def test_drafts_of_a_killed_run_are_removed_and_links_are_followed(go, recipe, finished, tmp_path):
    """Checkpoints are large and may be on another disk."""
    dead = finished / "checkpoints" / "step-0000001" / f".x.{'0' * 16}"
    dead.parent.mkdir(parents=True)
    dead.touch()
    # The limit of compressed files may be raised.
    assert go(recipe(corpus__max_megabytes=5000)).last.step == 12
    assert not dead.exists()
    (finished / "checkpoints").rename(tmp_path / "elsewhere")
    (finished / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert sorted(find_checkpoints(finished)) == [0, 6, 12]


def test_too_little_text_and_an_unknown_device_are_reported(go, recipe, refused):
    refused(go, recipe(vocabulary__size=5000))
    with pytest.raises(ConfigError, match="--device"):
        go(recipe(), device="abacus")


def test_second_process_or_a_run_without_its_log_is_refused(go, recipe, finished, refused):
    busy = "Another process is running this training in .* another --out.*kill -CONT"
    with FileLock(finished / ".lock"), pytest.raises(ConfigError, match=busy):
        go(recipe())
    (finished / "log.csv").unlink()
    refused(go, recipe())


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_run_with_a_changed_vocabulary_is_not_resumed(go, recipe, finished, name):
    content = (finished / name).read_bytes()
    for damaged in flipped(content, 20):
        (finished / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
            go(recipe())


def test_checkpoint_files_have_digests(finished):
    folder = finished / "checkpoints" / "step-0000012"
    files = ("config.json", "merges.txt", "model.safetensors", "vocab.json")
    assert file_checks(folder) == dict.fromkeys(files, "digests.json")


def test_path_is_loaded_as_a_recipe(recipe, tmp_path):
    (tmp_path / "tiny.yaml").write_text(dump_settings(recipe()))
    assert probekit.pretrain(tmp_path / "tiny.yaml", out=tmp_path / "runs").last.step == 12
