"""Paths given to commands: a file for a folder, a folder for a file, names that cannot exist."""

import pytest

TO_FOLDER = {
    "run": ("e.yaml",),
    "pretrain": ("e.yaml",),
    "transfer": ("a", "b"),
    "cache export": ("key",),
}
TO_FILE = {
    "compare": ("a", "b"),
    "apply": ("probe", "--text", "x"),
    "report": ("a", "b"),
    "weights": ("--model", "mini"),
    "heads": ("--model", "mini"),
    "attention": ("--model", "mini", "--text", "x"),
    "lens": ("--model", "mini", "--text", "x"),
    "attribution": ("--model", "mini", "--text", "x", "--token", "x"),
}
WITH_CACHE = {
    "run": ("e.yaml",),
    "transfer": ("a", "b", "--out", "o"),
    "cache": ("e.yaml",),
    "cache ls": (),
    "cache show": ("key",),
    "cache verify": (),
    "cache repair": ("key",),
    "cache gc": (),
    "cache rm": ("key",),
    "cache pull": ("place",),
    "cache push": ("key", "place"),
    "cache export": ("key", "--out", "o"),
}


def cases(commands, *wrong):
    return [(*command.split(), *rest, *w) for command, rest in commands.items() for w in wrong]


@pytest.mark.parametrize(
    "arguments",
    [
        *cases(TO_FOLDER, ("--out", "file"), ("--out", "file/below")),
        *cases(TO_FILE, ("--out", "file/page.html")),
        *cases(WITH_CACHE, ("--cache", "file"), ("--cache", "file/below")),
    ],
    ids=" ".join,
)
def test_file_instead_of_a_folder_is_a_usage_error(probekit, tmp_path, arguments):
    (tmp_path / "file").write_text("kept")
    code, output = probekit(*arguments)
    assert code == 2
    assert f"Invalid value for '{arguments[-2]}': file is a file, not a folder." in output
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("arguments", cases(TO_FILE, ("--out", "folder.html")), ids=" ".join)
def test_folder_instead_of_an_output_file_is_a_usage_error(probekit, tmp_path, arguments):
    (tmp_path / "folder.html").mkdir()
    code, output = probekit(*arguments)
    assert code == 2
    assert "Invalid value for '--out': folder.html is a folder. Give the path of a file." in output


def test_invalid_file_name_is_a_usage_error(probekit):
    code, output = probekit("run", "e.yaml", "--out", "x" * 300)
    assert code == 2
    assert "cannot be used: File name too long." in output


def test_new_folders_are_accepted(probekit, tmp_path):
    (tmp_path / "e.yaml").write_text("")
    code, output = probekit("run", "e.yaml", "--out", "a/b", "--cache", "c/d")
    assert code == 2
    assert "Invalid value" not in output
    assert "the file has no keys" in output
