"""`probekit cache`: exit code, streams and new files of each command are those that are stored."""

import json
import os
import re

import pytest

from probekit.activations.local import LocalFiles
from probekit.activations.records import FORMAT_OF_REPLIES, REPLIES
from probekit.activations.upkeep import copy_cache, remove_cache
from probekit.provenance import seal
from tests.activations.small_store import CONTENT, IDENTITY, SITES
from tests.cli.conftest import readable

KEY = IDENTITY.key


@pytest.fixture
def root(tmp_path):
    CONTENT.write(LocalFiles(tmp_path / "caches" / KEY))
    return tmp_path / "caches"


@pytest.fixture
def story(printed, root, snapshot):
    """A function that runs a command; all that was printed is compared at the end."""
    lines = []

    def cache(line, root="caches"):
        done = printed(f"PROBEKIT_CACHE={root} cache {line}")
        lines.append(f"> {readable(line)}\n{done}")

    yield cache
    text = "\n".join(lines).replace(KEY[:6], "KEY")
    assert re.sub(r'"age": .*,', '"age": AGE,', text) == snapshot


def test_ls_and_show_list_the_contents(story):
    for line in ("ls", "ls --json", f"show {KEY[:6]}", f"show {KEY} --json"):
        story(line)
    for line in ("ls", "ls --json", "verify", "verify --json", "gc"):
        story(line, root="none")


def test_damage_is_detected_and_repaired(story, root):
    story("verify")
    path = min((root / KEY / SITES[0]).glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    for line in (f"verify {KEY}", "verify --json", f"repair {KEY}", "verify"):
        story(line)
    (root / KEY / "spec.json").write_text("{}")
    for line in ("verify", f"show {KEY}", "ls", "gc"):
        story(line)
    CONTENT.write(LocalFiles(root / "whole"))
    (root / KEY / "spec.json").write_text('{"format": 99}')
    story("verify")  # one unreadable cache does not hide others


def test_gc_removes_temporary_files_and_old_caches(story, root):
    (root / KEY / SITES[0] / f"00000.{'ab' * 8}.safetensors").write_bytes(b"x" * 1500)
    for line in ("gc", "gc --older-than 1"):
        story(line)
    for name in ("spec.json", "manifest.json"):
        os.utime(root / KEY / name, (1e9, 1e9))
    for line in ("gc --older-than 1 --dry-run", "gc --older-than 1"):
        story(line)


def test_rm_removes_only_caches(story, root, tmp_path):
    (tmp_path / "mine").mkdir()
    for line in ("rm mine", f"rm {KEY}", f"rm {KEY}"):
        story(line)


def test_generated_replies_are_one_cache_of_several_parts(story, root):
    folder = root / f"replies-{'ab' * 12}"
    for part in ("00000", "00001"):
        CONTENT.write(LocalFiles(folder / part))
        (folder / part / REPLIES).write_bytes(seal({"replies": []}, FORMAT_OF_REPLIES))
    (folder / "00002").mkdir()  # of a killed generation
    (folder / "00002" / REPLIES).write_text("{}")
    for part in ("00001", "00002"):
        (folder / part / ".00000.safetensors.77").write_bytes(b"of a killed writer")
    for line in ("ls", "show replies", "verify", "gc", "gc replies"):
        story(line)
    with (folder / "00001" / REPLIES).open("ab") as file:
        file.write(b" ")
    story("verify replies")
    story("repair replies")
    (notes := folder / "00000" / "notes.txt").write_text("mine")
    story("rm replies")
    notes.unlink()
    story("rm replies")
    assert not folder.exists()


def test_push_pull_and_export_copy_a_cache(story, root, call):
    story(f"push {KEY} there")
    pin = json.loads(call("cache", "pull", f"there/{KEY}", "--json", "--cache", "a").stdout)["root"]
    story(f"pull there/{KEY} --root {pin}", root="b")
    story(f"pull there/{KEY} --json", root="b")
    story(f"pull there/{KEY} --root ab", root="c")
    story(f"export {KEY} --site {SITES[1]} --out out")
    story(f"export {KEY} --format csv --out x")


def test_caches_may_be_at_a_url(story, tmp_path):
    CONTENT.write(LocalFiles(tmp_path / KEY))
    store, _ = copy_cache(tmp_path / KEY, "memory://listed")
    assert store.folder == f"memory://listed/{KEY}"
    remove_cache(store.folder)
    story("ls --cache memory://listed")
    story("ls --cache nothing://x")
