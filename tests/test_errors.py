"""Arguments of the wrong type are reported by name, with what is allowed."""

import numpy as np
import pytest

from probekit import (
    GPT2,
    Experiment,
    RunResult,
    SavedProbe,
    Tokenizer,
    apply_probe,
    explore_attention,
    open_run,
    pretrain,
    probe,
    run,
)
from probekit.errors import ConfigError, DataError, MissingError, path_of
from probekit.progress import shown_progress

LAYERS = {0: [[float(row % 2)] for row in range(40)]}


def experiment():
    return {
        "name": "x",
        "model": {"source": "mini"},
        "data": {"name": "x", "columns": {"text": "text", "label": "label"}},
        "tokens": {"bos": False, "position": {"at": "last"}},
    }


def rows():
    return [{"text": f"number {row}", "label": "ab"[row % 2]} for row in range(40)]


@pytest.mark.parametrize("given", [3, None, ["runs"]])
@pytest.mark.parametrize(
    "call", [open_run, RunResult, SavedProbe.load, Experiment.from_file, pretrain]
)
def test_what_is_no_path_is_reported_by_name(call, given):
    with pytest.raises(ConfigError, match=r"^(folder|path|recipe) is .*Allowed: a string or a "):
        call(given)


def test_strings_and_paths_are_paths(tmp_path):
    assert path_of("out", str(tmp_path)) == path_of("out", tmp_path) == tmp_path
    with pytest.raises(ConfigError, match=r"^out is 'a\\x00b', which contains NUL\.$"):
        path_of("out", "a\0b")


def test_open_run_names_the_result_that_it_was_given(tmp_path):
    with pytest.raises(ConfigError, match="is a RunResult, so the run is open"):
        open_run(RunResult(tmp_path))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"out": 3}, "out is 3, of type int"),
        ({"out": None}, "out is of type NoneType"),
        ({"cache_root": 3}, "cache_root is 3, of type int"),
        ({"workers": "2"}, "workers is '2'; give 1 or more"),
        ({"workers": 2.0}, "workers is 2.0; give 1 or more"),
        ({"watcher": "quiet"}, "watcher is of type str"),
    ],
)
def test_options_of_a_run_are_checked_before_it_begins(option, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(experiment(), data=rows(), **{"out": tmp_path, "progress": False} | option)
    assert not list(tmp_path.iterdir())


def test_results_folder_of_given_activations_is_checked():
    layers = {name: np.array(values) for name, values in LAYERS.items()}
    with pytest.raises(ConfigError, match="out is 3, of type int"):
        probe(layers, [0, 1] * 20, out=3, progress=False)


def test_watcher_without_methods_is_reported():
    with pytest.raises(ConfigError, match="Omit it, or give an object"), shown_progress(5):
        pass


@pytest.fixture(scope="module")
def mini():
    return GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")


def test_arguments_of_the_explorer_are_reported_by_name(mini):
    model, tokenizer = mini
    explorer = explore_attention(model, tokenizer, "a cat", bos=False)
    with pytest.raises(ConfigError, match="path is 5, of type int"):
        explorer.save(5)
    with pytest.raises(ConfigError, match=r"model is of type BytePairTokenizer\. Load it: GPT2"):
        explore_attention(tokenizer, model, "a cat", bos=False)
    with pytest.raises(ConfigError, match=r"tokenizer is of type GPT2\. Load it: Tokenizer\.from"):
        explore_attention(model, model, "a cat", bos=False)
    with pytest.raises(ConfigError, match=r"texts is of type int\. Give a string or a list"):
        explore_attention(model, tokenizer, 5, bos=False)
    with pytest.raises(ConfigError, match=r"no layer '3'\. Allowed: 0 to 5"):
        explore_attention(model, tokenizer, "a cat", bos=False, layer="3")


def test_path_of_a_probe_is_no_probe():
    with pytest.raises(ConfigError, match=r"probe is of type str\. Load it: SavedProbe\.load"):
        apply_probe("probes/final", ["a"])


def test_text_is_no_token_ids(mini):
    with pytest.raises(DataError, match="ids is the text 'cat'"):
        mini[1].decode("cat")


def test_hidden_files_are_not_suggested(tmp_path):
    (tmp_path / ".pre-commit.yaml").write_text("")
    with pytest.raises(MissingError, match="`probekit experiments` lists") as error:
        Experiment.from_file(tmp_path / "missing.yaml")
    assert "pre-commit" not in str(error.value)


@pytest.mark.parametrize(
    "line", ["{0}: 1", "{0} 1", "? {0}\n: 1", "foo: *{0}", "probe: {{? {0} : 1}}"]
)
def test_a_value_of_a_megabyte_is_cut_in_the_message(tmp_path, line):
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: a\n{line.format('x' * 900_000)}\n")
    with pytest.raises(ConfigError) as caught:
        Experiment.from_file(path)
    assert len(str(caught.value)) < 2500
    assert f"{path}, line 2: " in str(caught.value)
