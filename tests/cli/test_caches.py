"""`probekit cache`: output and errors of each command."""

import json
import os

import pytest

from probekit.activations.local import LocalFiles
from probekit.activations.upkeep import copy_cache, remove_cache
from tests.activations.small_store import IDENTITY, SITES, Content

CONTENT = Content()
KEY = IDENTITY.key


@pytest.fixture
def root(tmp_path):
    CONTENT.write(LocalFiles(tmp_path / "caches" / KEY))
    return tmp_path / "caches"


@pytest.fixture
def probekit(call, monkeypatch):
    def probekit(*arguments, root, code=0):
        monkeypatch.setenv("PROBEKIT_CACHE", str(root))
        done = call("cache", *arguments)
        assert done.code == code, done.stderr
        return done

    return probekit


def test_ls_and_show_list_the_contents(probekit, root):
    listed = probekit("ls", root=root)
    assert listed.stdout.startswith(KEY)
    assert "6 rows of 6 examples, one token each, at 2 sites" in listed.stdout
    assert "1 cache, " in listed.stderr
    [entry] = json.loads(probekit("ls", "--json", root=root).stdout)
    assert entry["sites"] == dict.fromkeys(SITES, 6)
    shown = probekit("show", KEY[:6], root=root).stdout
    assert f"root {entry['root']}" in shown
    assert "weights: w" in shown
    as_json = json.loads(probekit("show", KEY, "--json", root=root).stdout)
    assert as_json["identity"]["tokens"] == "s"
    assert "0 caches" in probekit("ls", root=root / "none").stdout
    assert json.loads(probekit("ls", "--json", root=root / "none").stdout) == []


def test_damage_is_detected_and_repaired(probekit, root):
    assert probekit("verify", root=root).stdout == f"{root / KEY}: intact\n"
    path = next((root / KEY / SITES[0]).glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    done = probekit("verify", KEY, root=root, code=1)
    assert (
        f"{root / KEY}/{SITES[0]}/{path.name}: it is missing, or has the wrong size" in done.stdout
    )
    found = json.loads(probekit("verify", "--json", root=root, code=1).stdout)
    assert found[str(root / KEY)][0]["file"] == f"{SITES[0]}/{path.name}"
    assert path.name in probekit("repair", KEY, root=root).stdout
    assert "shards not captured yet: 1" in probekit("verify", root=root).stdout
    (root / KEY / "spec.json").write_text("{}")
    assert "spec.json is damaged" in probekit("verify", root=root, code=1).stdout
    assert "spec.json is damaged" in probekit("show", KEY, root=root, code=1).stdout
    assert "spec.json is damaged" in probekit("ls", root=root).stdout
    assert "skipped" in probekit("gc", root=root).stderr
    CONTENT.write(LocalFiles(root / "whole"))
    (root / KEY / "spec.json").write_text('{"format": 99}')
    done = probekit("verify", root=root, code=1)  # one unreadable cache does not hide others
    assert "has format 99" in done.stdout
    assert f"{root / 'whole'}: intact" in done.stdout


def test_gc_removes_temporary_files_and_old_caches(probekit, root):
    left = root / KEY / SITES[0] / f"00000.{'ab' * 8}.safetensors"
    left.write_bytes(b"x" * 1500)
    assert "1.5 kB" in probekit("gc", root=root).stdout
    assert not left.exists()
    assert probekit("gc", "--older-than", "1", root=root).stdout == ""
    for name in ("spec.json", "manifest.json"):
        os.utime(root / KEY / name, (1e9, 1e9))
    would = probekit("gc", "--older-than", "1", "--dry-run", root=root).stdout
    assert would.startswith(f"would remove {root / KEY}")
    assert (root / KEY).exists()
    assert probekit("gc", "--older-than", "1", root=root).stdout.startswith("removed")
    assert not (root / KEY).exists()


def test_rm_removes_only_caches(probekit, root, tmp_path):
    (tmp_path / "mine").mkdir()
    done = probekit("rm", tmp_path / "mine", root=root, code=3)
    assert f"There is no cache '{tmp_path / 'mine'}'" in done.stderr
    assert probekit("rm", KEY, root=root).stdout == f"removed {root / KEY}\n"
    assert "contains no caches" in probekit("rm", KEY, root=root, code=3).stderr
    assert (tmp_path / "mine").exists()


def test_push_pull_and_export_copy_a_cache(probekit, root, tmp_path):
    pushed = probekit("push", KEY, tmp_path / "there", root=root).stdout
    assert pushed.startswith(f"{tmp_path / 'there' / KEY}: 4 shards copied, root ")
    pin = pushed.split()[-1]
    pulled = probekit("pull", tmp_path / "there" / KEY, "--root", pin, root=tmp_path / "b")
    assert "4 shards copied" in pulled.stdout
    assert json.loads(
        probekit("pull", tmp_path / "there" / KEY, "--json", root=tmp_path / "b").stdout
    ) == {"place": str(tmp_path / "b" / KEY), "copied": 0, "root": pin}
    wrong = probekit("pull", tmp_path / "there" / KEY, "--root", "ab", root=tmp_path / "c", code=1)
    assert "root digest" in wrong.stderr
    written = probekit("export", KEY, "--site", SITES[1], "--out", tmp_path / "out", root=root)
    assert written.stdout.splitlines()[0] == str(tmp_path / "out" / f"{SITES[1]}.npy")
    none = probekit("export", KEY, "--format", "csv", "--out", tmp_path / "x", root=root, code=2)
    assert "Allowed: npy, parquet, safetensors" in none.stderr


def test_empty_root_is_reported(probekit, tmp_path):
    for command in ("verify", "gc"):
        assert f"There are no caches in {tmp_path}." in probekit(command, root=tmp_path).stderr
    assert json.loads(probekit("verify", "--json", root=tmp_path).stdout) == {}


def test_mistyped_command_is_distinguished_from_a_file(probekit, root, tmp_path):
    assert "Nearest: verify" in probekit("vrify", root=root, code=2).stderr
    assert "nothing.yaml" in probekit("nothing.yaml", root=root, code=3).stderr
    assert "no such option" in probekit("--nonsense", root=root, code=2).stderr.lower()
    help = probekit("--help", root=root).stdout
    assert "probekit cache FILE.yaml" in help
    for command in ("ls", "show", "verify", "rm", "gc", "repair", "export", "pull", "push"):
        assert f"  {command} " in help


def test_caches_may_be_at_a_url(probekit, tmp_path):
    CONTENT.write(LocalFiles(tmp_path / KEY))
    store, _ = copy_cache(tmp_path / KEY, "memory://caches")
    assert store.folder == f"memory://caches/{KEY}"
    remove_cache(store.folder)
    done = probekit("ls", "--cache", "memory://caches", root=tmp_path)
    assert "in memory://caches" in done.stdout
    assert "nothing://x" in probekit("ls", "--cache", "nothing://x", root=tmp_path, code=1).stderr
