"""A digest of code says of every file whether it changed."""

import sys

from probekit.provenance import digest_code


def test_code_in_a_folder_of_a_package_counts_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "known" / "inner").mkdir(parents=True)
    for name in ("known", "known/inner"):
        (tmp_path / name / "__init__.py").touch()
    deep = tmp_path / "known" / "inner" / "deep.py"
    deep.write_text("x = 1\n")
    first = digest_code("known")
    deep.write_text("x = 1  # a comment is no code\n")
    assert digest_code("known") == first
    deep.write_text("x = 2\n")
    assert digest_code("known") != first
