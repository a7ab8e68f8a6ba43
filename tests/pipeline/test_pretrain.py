"""Complete pretraining runs: their models, resuming, and refused changes."""

import json
import shutil

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
from tests.training.test_loop import Killer


@pytest.fixture
def go(tmp_path):
    def go(recipe, name="runs", **options):
        return pretrain(recipe, out=tmp_path / name, **options)

    return go


def test_each_checkpoint_can_be_loaded_by_transformers(go, make_recipe):
    result = go(make_recipe())
    kept = find_checkpoints(result.folder)
    assert sorted(kept) == [0, 6, 12]
    assert result.model == kept[12]
    tokenizer = Tokenizer.from_pretrained(result.model)
    tokens = torch.from_numpy(tokenizer.encode("The key to old", bos=False).ids)[None]
    ours = GPT2.from_pretrained(result.model)(tokens)
    theirs = GPT2LMHeadModel.from_pretrained(result.model).eval()(tokens).logits
    assert (ours - theirs).abs().max() < 1e-5
    assert (ours - GPT2.from_pretrained(kept[0])(tokens)).abs().max() > 1e-3


def test_killed_run_resumes_to_identical_losses_and_files(go, make_recipe):
    whole = go(make_recipe(), "whole")
    with pytest.raises(KeyboardInterrupt):
        go(make_recipe(), "killed", watcher=Killer(7))
    resumed = go(make_recipe(), "killed")
    for name in ("model.safetensors", "vocab.json"):
        assert (whole.model / name).read_bytes() == (resumed.model / name).read_bytes()
    losses = [[row.loss for row in read_log(r.folder / "log.csv")] for r in (whole, resumed)]
    assert losses[0] == losses[1]


def test_more_steps_continue_a_finished_run(go, make_recipe):
    first = go(_with(make_recipe, 12))
    more = go(_with(make_recipe, 16))
    assert (first.last.step, more.last.step) == (12, 16)
    whole = go(_with(make_recipe, 16), "whole")
    assert [r.loss for r in read_log(more.folder / "log.csv")] == [
        r.loss for r in read_log(whole.folder / "log.csv")
    ]


def _with(make_recipe, steps):
    base = make_recipe()
    training = base.training.model_dump() | {"steps": steps, "decay_steps": 0}
    return make_recipe(training=training)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "general.seed was 0, is 1"),
        ({"training__batch": 8}, "training.batch was 4, is 8"),
        ({"model__n_layer": 3}, "model.n_layer was 2, is 3"),
        ({"corpus__held_out": 0.2}, "corpus.held_out was 0.1, is 0.2"),
    ],
)
def test_different_recipe_does_not_resume_the_folder(go, make_recipe, changes, message):
    go(make_recipe())
    with pytest.raises(ConfigError, match=message):
        go(make_recipe(**changes))


def test_schedule_that_changes_completed_steps_is_refused(go, make_recipe):
    go(make_recipe())
    longer = make_recipe().training.model_dump() | {"steps": 20}
    with pytest.raises(
        ConfigError, match=r"would give the completed step \d+ another learning rate"
    ):
        go(make_recipe(training=longer))


def test_fewer_steps_than_completed_are_refused(go, make_recipe):
    go(make_recipe())
    with pytest.raises(
        ConfigError, match=r"has already completed 12 steps, more than training.steps, 6"
    ):
        go(make_recipe(training=make_recipe().training.model_dump() | {"steps": 6}, checkpoints={}))


def test_changed_texts_are_refused(go, make_recipe, corpus):
    go(make_recipe())
    (corpus / "a.txt").write_text((corpus / "a.txt").read_text() + " One sentence more.")
    with pytest.raises(ConfigError, match="corpus differs from the one"):
        go(make_recipe())


def test_vocabulary_of_another_model_can_be_used(go, make_recipe):
    result = go(make_recipe(vocabulary={"source": "mini"}))
    assert GPT2.from_pretrained(result.model).config.vocab_size == 8192
    mini, own = (Tokenizer.from_pretrained(source) for source in ("mini", result.model))
    assert own.digest == mini.digest


def test_vocabulary_of_a_run_without_steps_is_not_reused(go, make_recipe):
    with pytest.raises(KeyboardInterrupt):
        go(make_recipe(), watcher=Killer(1))
    result = go(make_recipe(vocabulary__size=280))
    assert GPT2.from_pretrained(result.model).config.vocab_size == 280


def test_vocabulary_in_another_layout_is_copied_to_the_checkpoints(go, make_recipe, tmp_path):
    source = shutil.copytree(MINI, tmp_path / "source")
    (source / "vocab.json").rename(source / "encoder.json")
    (source / "merges.txt").rename(source / "vocab.bpe")
    result = go(make_recipe(vocabulary={"source": str(source)}))
    mini, own = (Tokenizer.from_pretrained(folder) for folder in ("mini", result.model))
    assert own.digest == mini.digest


def test_checkpoints_can_be_saved_in_float16(go, make_recipe):
    result = go(make_recipe(checkpoints={"dtype": "float16"}))
    full = go(make_recipe(checkpoints={}), "full")
    sizes = [(r.model / "model.safetensors").stat().st_size for r in (result, full)]
    assert sizes[0] < 0.6 * sizes[1]


def test_record_lists_the_inputs_of_the_run(go, make_recipe):
    result = go(make_recipe())
    record = json.loads((result.folder / "run.json").read_text())
    assert record["texts"] == ["a.txt", "b.txt"]
    model = GPT2.from_pretrained(result.model)
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert set(record["digests"]) == {"corpus", "vocabulary", "tokens"}
    assert result.log.is_file()
    assert result.figure.is_file()


def test_record_lists_the_checksum_source_of_the_vocabulary(go, make_recipe):
    def source_of(result):
        return json.loads((result.folder / "run.json").read_text())["vocabulary_source"]

    mini = source_of(go(make_recipe(vocabulary={"source": "mini"}), "mini"))
    assert mini == {
        "source": "mini",
        "compared_with": {"vocab.json": "digests.json", "merges.txt": "digests.json"},
    }
    assert source_of(go(make_recipe())) == {"source": None, "compared_with": {}}


def test_links_in_a_pretraining_folder_are_followed(go, make_recipe, tmp_path):
    """Checkpoints are large and may be on another disk."""
    folder = go(make_recipe()).folder
    (folder / "checkpoints").rename(tmp_path / "elsewhere")
    (folder / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert sorted(find_checkpoints(folder)) == [0, 6, 12]


def test_drafts_of_a_killed_run_are_removed(go, make_recipe, tmp_path):
    dead = tmp_path / "runs" / "tiny" / "checkpoints" / "step-0000001" / f".x.{'0' * 16}"
    dead.parent.mkdir(parents=True)
    dead.touch()
    go(make_recipe())
    assert not dead.exists()


def test_too_little_text_for_the_vocabulary_is_reported_with_its_key(go, make_recipe):
    with pytest.raises(DataError, match=r"tokens instead of 5000.*vocabulary.size"):
        go(make_recipe(vocabulary__size=5000))


def test_unknown_device_is_reported(go, make_recipe):
    with pytest.raises(ConfigError, match="--device"):
        go(make_recipe(), device="abacus")


def test_path_is_loaded_as_a_recipe(make_recipe, tmp_path):
    (tmp_path / "tiny.yaml").write_text(dump_settings(make_recipe()))
    assert probekit.pretrain(tmp_path / "tiny.yaml", out=tmp_path / "runs").last.step == 12


def test_second_process_in_the_same_training_folder_is_refused(go, make_recipe, tmp_path):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    with (
        FileLock(tmp_path / "runs" / "tiny" / ".lock"),
        pytest.raises(ConfigError, match="Another process is training in"),
    ):
        go(make_recipe())


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_run_with_a_changed_vocabulary_is_not_resumed(go, make_recipe, name):
    path = go(make_recipe()).folder / name
    content = path.read_bytes()
    for damaged in flipped(content, 20):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
            go(make_recipe())


def test_checkpoint_files_have_digests(go, make_recipe):
    folder = go(make_recipe()).model
    files = ("config.json", "merges.txt", "model.safetensors", "vocab.json")
    assert file_checks(folder) == dict.fromkeys(files, "digests.json")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_head": 4}))
    with pytest.raises(CheckpointError, match=r"config\.json is damaged or from another model"):
        GPT2.from_pretrained(folder)


def test_different_recipe_is_refused_without_the_saved_recipe(go, make_recipe):
    (go(make_recipe()).folder / "recipe.yaml").unlink()
    with pytest.raises(ConfigError, match=r"general\.seed was 0, is 1"):
        go(make_recipe(seed=1))


def test_limit_of_compressed_files_may_be_raised_when_resuming(go, make_recipe):
    go(make_recipe())
    assert go(make_recipe(corpus__max_megabytes=5000)).last.step == 12


def test_run_without_its_log_is_not_resumed(go, make_recipe):
    (go(make_recipe()).folder / "log.csv").unlink()
    with pytest.raises(MissingError, match=r"log.csv does not exist"):
        go(make_recipe())
