"""Complete pretraining runs: their models, resuming, and refused changes."""

import json
import shutil
from functools import partial

import pytest
import torch
from filelock import FileLock
from transformers import GPT2LMHeadModel

import probekit
from probekit.errors import CheckpointError, ConfigError, DataError, MissingError
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
    def go(recipe, name="runs", **options):
        return pretrain(recipe, out=tmp_path / name, **options)

    return go


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
        training = recipe().training.model_dump() | {"steps": steps, "decay_steps": 0}
        return recipe(training=training)

    first, more = (go(with_steps(steps)) for steps in (12, 16))
    assert (first.last.step, more.last.step) == (12, 16)
    assert losses(more) == losses(go(with_steps(16), "at_once"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "general.seed was 0, is 1"),
        ({"training__batch": 8}, "training.batch was 4, is 8"),
        ({"model__n_layer": 3}, "model.n_layer was 2, is 3"),
        ({"corpus__held_out": 0.2}, "corpus.held_out was 0.1, is 0.2"),
        # Schedules that change completed steps, or end before them.
        ({"training__steps": 20}, r"would give the completed step \d+ another learning rate"),
        (
            {"training__steps": 6, "checkpoints": {}},
            "has already completed 12 steps, more than training.steps, 6",
        ),
    ],
)
def test_different_recipe_does_not_resume_the_folder(go, recipe, finished, changes, message):
    if "seed" in changes:
        (finished / "recipe.yaml").unlink()  # the run keeps its recipe elsewhere, too
    with pytest.raises(ConfigError, match=message):
        go(recipe(**changes))


def test_changed_texts_are_refused(go, make_recipe, corpus):
    go(make_recipe())
    (corpus / "a.txt").write_text((corpus / "a.txt").read_text() + " One sentence more.")
    with pytest.raises(ConfigError, match="corpus differs from the one"):
        go(make_recipe())


def test_vocabulary_of_another_model_can_be_used(go, recipe, whole):
    result = go(recipe(vocabulary={"source": "mini"}))
    assert GPT2.from_pretrained(result.model).config.vocab_size == 8192
    assert digest(result.model) == digest("mini")
    sources = [json.loads((run.folder / "run.json").read_text()) for run in (result, whole)]
    assert [record["vocabulary_source"] for record in sources] == [
        {
            "source": "mini",
            "compared_with": {"vocab.json": "digests.json", "merges.txt": "digests.json"},
        },
        {"source": None, "compared_with": {}},
    ]


def test_vocabulary_of_a_run_without_steps_is_not_reused(go, recipe):
    with pytest.raises(KeyboardInterrupt):
        go(recipe(), watcher=Killer(1))
    result = go(recipe(vocabulary__size=280))
    assert GPT2.from_pretrained(result.model).config.vocab_size == 280


def test_vocabulary_in_another_layout_is_copied_to_the_checkpoints(go, recipe, tmp_path):
    source = shutil.copytree(MINI, tmp_path / "source")
    (source / "vocab.json").rename(source / "encoder.json")
    (source / "merges.txt").rename(source / "vocab.bpe")
    result = go(recipe(vocabulary={"source": str(source)}))
    assert digest(result.model) == digest("mini")


def test_checkpoints_can_be_saved_in_float16(go, recipe, whole):
    result = go(recipe(checkpoints={"dtype": "float16"}))
    sizes = [(r.model / "model.safetensors").stat().st_size for r in (result, whole)]
    assert sizes[0] < 0.6 * sizes[1]


def test_record_lists_the_inputs_of_the_run(whole):
    record = json.loads((whole.folder / "run.json").read_text())
    assert record["texts"] == ["a.txt", "b.txt"]
    model = GPT2.from_pretrained(whole.model)
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert set(record["digests"]) == {"corpus", "vocabulary", "tokens"}
    assert whole.log.is_file()
    assert whole.figure.is_file()


def test_links_in_a_pretraining_folder_are_followed(finished, tmp_path):
    """Checkpoints are large and may be on another disk."""
    (finished / "checkpoints").rename(tmp_path / "elsewhere")
    (finished / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert sorted(find_checkpoints(finished)) == [0, 6, 12]


def test_drafts_of_a_killed_run_are_removed(go, recipe, finished):
    dead = finished / "checkpoints" / "step-0000001" / f".x.{'0' * 16}"
    dead.parent.mkdir(parents=True)
    dead.touch()
    go(recipe())
    assert not dead.exists()


def test_too_little_text_for_the_vocabulary_is_reported_with_its_key(go, recipe):
    with pytest.raises(DataError, match=r"tokens instead of 5000.*vocabulary.size"):
        go(recipe(vocabulary__size=5000))


def test_unknown_device_is_reported(go, recipe):
    with pytest.raises(ConfigError, match="--device"):
        go(recipe(), device="abacus")


def test_path_is_loaded_as_a_recipe(recipe, tmp_path):
    (tmp_path / "tiny.yaml").write_text(dump_settings(recipe()))
    assert probekit.pretrain(tmp_path / "tiny.yaml", out=tmp_path / "runs").last.step == 12


def test_second_process_in_the_same_training_folder_is_refused(go, recipe, finished):
    with (
        FileLock(finished / ".lock"),
        pytest.raises(ConfigError, match="Another process is training in"),
    ):
        go(recipe())


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
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_head": 4}))
    with pytest.raises(CheckpointError, match=r"config\.json is damaged or from another model"):
        GPT2.from_pretrained(folder)


@pytest.mark.usefixtures("finished")
def test_limit_of_compressed_files_may_be_raised_when_resuming(go, recipe):
    assert go(recipe(corpus__max_megabytes=5000)).last.step == 12


def test_run_without_its_log_is_not_resumed(go, recipe, finished):
    (finished / "log.csv").unlink()
    with pytest.raises(MissingError, match=r"log.csv does not exist"):
        go(recipe())
