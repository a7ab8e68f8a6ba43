"""Finished runs with changed files are refused with the file's name and not reused."""

import json
import re
import shutil
from functools import partial

import pytest
from filelock import FileLock

from probekit.cli.main import cli
from probekit.cli.view_server import find_page
from probekit.errors import ConfigError, DataError, MissingError, StoreError
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.look.apply import check_saved_probe
from probekit.probes.saved_probe import SavedProbe
from probekit.progress import STAGE
from probekit.report.pages.compare_page import load_runs
from probekit.report.pages.index_page import index_page
from probekit.report.pages.run_page import run_figures, write_report
from probekit.results.record import RESULT_FILES, RunRecord, load_record, pack_record
from tests.pipeline.planted import QUICK
from tests.pipeline.planted import QUICK_SITES as SITES
from tests.pipeline.scale import Heard

WEIGHTS = f"probes/{SITES[1]}/logistic.safetensors"
JSON, ANSWERS = (f"sites/{SITES[1]}.{ending}" for ending in ("json", "safetensors"))


@pytest.fixture(scope="module")
def whole(planted):
    """The folder of the run, undamaged."""
    return planted.run(*QUICK).folder


@pytest.fixture
def damaged(whole, own):
    """A copy of that folder for a test to damage."""
    return own.take(whole)


@pytest.fixture
def go(own):
    """A function that runs the experiment, again in the folder of `damaged` if it is there."""
    return lambda page=False, **options: own.run(*QUICK, page=page, **options).folder


def flip(path, place=-2):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def files_of(folder):
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return sorted(p.relative_to(folder).as_posix() for p in files)


def test_run_json_has_digests_of_itself_and_every_file(whole):
    content = (whole / "run.json").read_bytes()
    record = json.loads(content)
    # The fields are those that the record declares, in this order.
    assert list(record) == ["format", *RunRecord.model_fields, "seal"]
    assert pack_record(load_record(whole / "run.json").model_dump()) == content
    assert {*record["files"], "run.json", "report.html"} == {*files_of(whole)}
    assert {name for name in record["files"] if "/" not in name} <= set(RESULT_FILES)
    assert WEIGHTS in record["files"]
    assert len(record["seal"]) == 64


READERS = {
    "report": write_report,
    "figures": run_figures,
    "compare": lambda folder: compare(folder, folder.parent),
    "page of several runs": lambda folder: load_runs([folder]),
    "view": lambda folder: find_page(folder.parents[1], f"/run/planted/{folder.name}/report.html"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["results.csv", WEIGHTS, f"sites/{SITES[0]}.safetensors"])
def test_changed_file_is_named(damaged, reader, name):
    flip(damaged / name)
    with pytest.raises(DataError, match=f"damaged: {name} changed after the run"):
        READERS[reader](damaged)


def test_every_changed_file_is_detected(damaged, whole):
    for name in json.loads((whole / "run.json").read_text())["files"]:
        flip(damaged / name, 0)
        with pytest.raises(DataError, match=f"{name} changed"):
            load_runs([damaged])
        (damaged / name).unlink()
        with pytest.raises(DataError, match=f"{name} was deleted"):
            load_runs([damaged])
        shutil.copy(whole / name, damaged / name)
    load_runs([damaged])
    (damaged / "training.csv").write_text("step\n1\n")
    with pytest.raises(DataError, match=r"training\.csv was added after the run"):
        write_report(damaged)


def test_any_changed_byte_of_run_json_is_detected(damaged):
    path = damaged / "run.json"
    content = path.read_bytes()
    places = {*range(0, len(content), 211), content.index(b"format"), content.index(b'"seal"') + 1}
    flipped = (content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :] for n in places)
    cut = (content[:size] for size in (0, 1, len(content) // 2, len(content) - 1))
    for other in (*flipped, *cut):
        path.write_bytes(other)
        with pytest.raises(DataError, match=r"run\.json"):
            load_runs([damaged])


def test_index_shows_damaged_runs(damaged):
    assert 'class="state' not in index_page(damaged.parents[1])
    assert not (damaged / STAGE).exists()
    flip(damaged / "results.csv")
    assert "results.csv changed after the run" in index_page(damaged.parents[1])


def test_replaced_probe_of_a_run_is_refused(damaged):
    path = damaged / "probes" / SITES[0] / "logistic.json"
    check_saved_probe(path)
    for kept in (damaged / "probes" / SITES[1]).iterdir():
        shutil.copy(kept, path.parent)
    with pytest.raises(DataError, match=f"probes/{SITES[0]}/logistic.json changed after the run"):
        check_saved_probe(path)
    with pytest.raises(DataError, match="changed after the run"):
        cli(["apply", str(path), "--text", "a"], standalone_mode=False)
    flip(damaged / "run.json", 40)
    with pytest.raises(DataError, match=r"run\.json"):
        check_saved_probe(path)
    alone = shutil.copytree(path.parent, damaged.parent / "alone") / "logistic"
    check_saved_probe(alone)
    assert SavedProbe.load(alone).facts.sites == SITES[1:]


def swap_probes(folder):
    for path in (folder / "probes" / SITES[0]).iterdir():
        other = folder / "probes" / SITES[1] / path.name
        content = other.read_bytes()
        other.write_bytes(path.read_bytes())
        path.write_bytes(content)


def altered(text):
    """Another value of the first measurement."""
    return re.sub(rb'"value": [\d.]+', b'"value": 0.123', text, count=1)


def replaced(name, change):
    """A function that writes other bytes to a file of a run."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


HARMS = {
    "weights": lambda folder: flip(folder / WEIGHTS),
    "facts": lambda folder: flip((folder / WEIGHTS).with_name("logistic.json"), 300),
    "no probes": lambda folder: shutil.rmtree(folder / "probes"),
    "swapped probes": swap_probes,
    "run.json": lambda folder: flip(folder / "run.json"),
    "site": lambda folder: flip(folder / JSON, 300),
    "site of another": lambda folder: shutil.copy(folder / f"sites/{SITES[0]}.json", folder / JSON),
    # A run may be killed after the answers of a site are written, and before its numbers are.
    "no site": lambda folder: (folder / JSON).unlink(),
    "last byte": replaced(JSON, lambda text: text[:-1]),  # a line break: no value changes
    "value": replaced(JSON, altered),
    **{
        f"text {content:.9}": replaced(JSON, lambda _, content=content: content.encode())
        for content in ("", "{", "[]", "[" * 100_000, '{"digest": "0", "measurements": []}')
    },
    "answers without their end": replaced(ANSWERS, lambda answers: answers[:-5]),
    "three bytes of answers": replaced(ANSWERS, lambda answers: answers[:3]),
    "no answers": replaced(ANSWERS, lambda _: b""),
    "name in answers": replaced(ANSWERS, lambda answers: answers.replace(b"logs", b"logz", 1)),
}


@pytest.mark.parametrize("harm", HARMS)
def test_changed_files_are_not_reused(go, whole, damaged, harm):
    HARMS[harm](damaged)
    assert go() == damaged
    for name in (WEIGHTS, "results.csv", JSON, ANSWERS):
        assert (damaged / name).read_bytes() == (whole / name).read_bytes()
    load_runs([damaged])


def test_second_process_in_the_same_run_folder_is_refused(go, whole, damaged):
    (damaged / "run.json").unlink()  # a finished run would only be read
    message = rf"Another process is running .* in {damaged}"
    with FileLock(damaged / ".lock"), pytest.raises(ConfigError, match=message):
        go()
    go()
    assert files_of(damaged) == files_of(whole)


@pytest.mark.parametrize(("what", "done"), [("", 1.5), ("", 2), ("{key}/probes", 2)])
def test_deleting_the_run_folder_during_the_run_raises(go, own, whole, what, done):
    path = own.folder / "runs" / "planted" / what.format(key=whole.name)

    def delete(_):
        probed = [n for step, n, _ in heard.steps if step == "probe" and n >= done]
        if probed and path.exists() and not deleted:
            deleted.append(path)
            shutil.rmtree(path)

    heard, deleted = Heard(delete), []
    with pytest.raises(StoreError, match="was deleted or changed during the run"):
        go(watcher=heard)
    assert not list(own.folder.rglob("run.json"))
    assert sorted([*files_of(go()), "report.html"]) == files_of(whole)


def test_every_command_refuses_an_unfinished_run_in_the_same_words(damaged, whole):
    commands = [partial(write_report, damaged), partial(check_saved_probe, damaged / WEIGHTS)]
    commands += [partial(compare, damaged, whole), partial(load_runs, [damaged])]
    for is_written in (True, False):
        (damaged / ".started").touch()
        if not is_written:
            (damaged / "run.json").unlink()
        messages = set()
        for command in commands:
            with pytest.raises(MissingError) as raised:
                command()
            messages.add(str(raised.value))
        (message,) = messages
        assert "contains an unfinished run. Run the experiment again with the same --out" in message
    with pytest.raises(MissingError, match=r"results\.csv is a file, not the folder of a run"):
        write_report(whole / "results.csv")


def test_a_page_that_cannot_be_written_does_not_lose_the_run(go, damaged):
    (damaged / "report.html").unlink()
    (damaged / "report.html").mkdir()
    message = f"The run is complete, but its page is not written.*run `probekit report {damaged}`"
    with pytest.raises(StoreError, match=f"(?s){message}"):
        go(page=True)
    assert not (damaged / ".started").exists()
    (damaged / "report.html").rmdir()
    assert write_report(damaged).is_file()
