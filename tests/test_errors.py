"""Arguments of the wrong type are reported by name, with what is allowed."""

import numpy as np
import pytest

import probekit
from probekit import Experiment, RunResult, SavedProbe, open_run, pretrain
from probekit.errors import ConfigError, path_of
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


@pytest.mark.parametrize("given", [3, None, ["runs"]], ids=str)
@pytest.mark.parametrize(
    "call", [open_run, RunResult, SavedProbe.load, Experiment.from_file, pretrain]
)
def test_what_is_no_path_is_reported_by_name(call, given, refused):
    refused(call, given)


def test_strings_and_paths_are_paths(tmp_path, refused):
    assert path_of("out", str(tmp_path)) == path_of("out", tmp_path) == tmp_path
    refused(path_of, "out", "a\0b")


def test_open_run_names_the_result_that_it_was_given(tmp_path, refused):
    refused(open_run, RunResult(tmp_path))


@pytest.mark.parametrize(
    "option",
    [
        *({"out": value} for value in (3, None)),
        {"cache_root": 3},
        *({"workers": value} for value in ("2", 2.0)),
        {"watcher": "quiet"},
    ],
    ids=str,
)
def test_options_of_a_run_are_checked_before_it_begins(option, tmp_path, refused):
    refused(
        probekit.run, experiment(), data=rows(), **{"out": tmp_path, "progress": False} | option
    )
    assert not list(tmp_path.iterdir())


def test_results_folder_of_given_activations_is_checked(refused):
    layers = {name: np.array(values) for name, values in LAYERS.items()}
    refused(probekit.probe, layers, [0, 1] * 20, out=3, progress=False)


def test_watcher_without_methods_is_reported(refused):
    refused(shown_progress(5).__enter__)


@pytest.fixture(scope="module")
def mini():
    return probekit.GPT2.from_pretrained("mini"), probekit.Tokenizer.from_pretrained("mini")


@pytest.mark.parametrize(
    "call",
    [
        "probekit.explore_attention(model, tokenizer, 'a cat', bos=False).save(5)",
        "probekit.explore_attention(tokenizer, model, 'a cat', bos=False)",
        "probekit.explore_attention(model, model, 'a cat', bos=False)",
        "probekit.explore_attention(model, tokenizer, 5, bos=False)",
        "probekit.explore_attention(model, tokenizer, 'a cat', bos=False, layer='3')",
        "probekit.attention_figure(tokenizer, model, 'a cat', bos=False, layer=3)",
        "probekit.apply_probe('probes/final', ['a'])",
        "tokenizer.decode('cat')",
    ],
)
def test_arguments_are_reported_by_name(call, mini, refused):
    model, tokenizer = mini
    refused(eval, call, {"probekit": probekit, "model": model, "tokenizer": tokenizer})


def test_hidden_files_are_not_suggested(tmp_path, refused):
    (tmp_path / ".pre-commit.yaml").write_text("")
    refused(Experiment.from_file, tmp_path / "missing.yaml")


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
