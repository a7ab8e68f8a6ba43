"""What a result depends on: content digests, sealed JSON files, versions of packages and of code.

The import name is `probekit`, but the package index has an unrelated project of that name. Messages
therefore read the name of the distribution that installed this folder.
"""

import json
import platform
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions, version
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from blake3 import blake3

from probekit.errors import DamagedError, StoreError

DISTRIBUTION = "probekit-lens"  # preferred if several distributions installed this folder
PACKAGE = Path(__file__).resolve().parent
# Packages whose versions are recorded, because they affect results.
_RECORDED = ("torch", "tiktoken", "scikit-learn", "numpy", "scipy", "pandas", "plotly")
# Versions of the parts that compute numbers. If the numbers of a part change, raise its version and
# run `make golden`; tests/test_golden.py compares them. Networks have their own, `Network.VERSION`.
PART_VERSIONS = {
    "initialisation": 1,  # random weights
    "capture": 1,  # from the values at a site to the rows on disk
    "output": 1,  # numbers of the network's output
    "probes": 2,
    "statistics": 2,
    "interventions": 2,
}


def digest(chunks: Iterable[bytes | memoryview]) -> str:
    """Return the BLAKE3 digest of chunks of bytes, in hexadecimal.

    >>> digest([b"ab", b"c"]) == digest([b"abc"])
    True
    """
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def digest_file(path: Path) -> str:
    """Return the digest of a file, which may be as large as the weights of a model."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value; the order of keys does not matter.

    >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    True
    """
    return digest([canonical_json(value).encode()])


def canonical_json(value: Any) -> str:
    """Return a value as JSON with sorted keys and no spaces, the text that `digest_json` hashes.

    >>> canonical_json({"b": [1.5, None], "a": "ü"})
    '{"a":"ü","b":[1.5,null]}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def pretty_json(value: Any) -> str:
    """Return indented JSON with a final newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def seal(content: dict[str, Any], format: int) -> bytes:
    """Return the bytes of a JSON file with `content`, its format version and a digest of both.

    >>> unseal(seal({"rows": 3}, format=1), "x.json", format=1)
    {'rows': 3}
    """
    numbered = {"format": format, **content}
    return pretty_json({**numbered, "seal": digest_json(numbered)}).encode()


def unseal(data: bytes, path: str, format: int) -> dict[str, Any]:
    """Return the content of a file written by `seal`.

    Args:
        data: the bytes of the file.
        path: the file's name in error messages.
        format: the format version that is read.

    Raises:
        DamagedError: the content differs from what was written.
        StoreError: the file has another format version.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}.") from error
    fields = dict(content) if isinstance(content, dict) else {}
    file_format = fields.pop("format", None)
    fields.pop("seal", None)
    if isinstance(file_format, int) and file_format != format:
        raise StoreError(
            f"{path} has format {file_format}; this release reads format {format}. Use the release "
            "that wrote it."
        )
    try:
        # The stored digest is not compared: `seal` must reproduce the whole file, byte for byte.
        is_sealed = seal(fields, format) == data
    except ValueError:  # NaN, or an unpaired surrogate
        is_sealed = False
    if not is_sealed:
        raise DamagedError(f"{path} is damaged: its digest does not match its content.")
    return fields


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of all packages that affect results."""
    own = {"python": platform.python_version(), "probekit": origin().version}
    return own | {name: version(name) for name in _RECORDED}


@cache
def digest_sources(package: Path = PACKAGE) -> str:
    """Return one digest of the names and contents of all source files of the package."""
    files = package.rglob("*.py")
    return digest_json({f.relative_to(package).as_posix(): digest([f.read_bytes()]) for f in files})


@dataclass(frozen=True)
class Origin:
    """Where the imported package comes from.

    Attributes:
        name: name of the distribution.
        version: version of the distribution; "unknown" without its metadata.
        checkout: folder of the source code; None if the package was installed from a wheel.
        is_installed: whether a distribution installed this package, editable installs included.
    """

    name: str
    version: str
    checkout: Path | None
    is_installed: bool

    def install_command(self, extra: str) -> str:
        """Return the shell command that installs an extra next to this package.

        >>> Origin("probekit-lens", "1.0.0", None, True).install_command("onnx")
        "pip install 'probekit-lens[onnx]'"
        """
        if self.checkout is not None and not self.is_installed:
            return f"pip install -e '{self.checkout}[{extra}]'"
        return f"pip install '{self.name}[{extra}]'"


@cache
def origin() -> Origin:
    """Return where the imported package comes from.

    >>> origin().name
    'probekit-lens'
    """
    return find_origin(PACKAGE)


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra, with the name of the distribution.

    >>> install_command("onnx").endswith("[onnx]'")
    True
    """
    return origin().install_command(extra)


def find_origin(package: Path, search: Sequence[str] | None = None) -> Origin:
    """Return where a package folder comes from.

    Args:
        package: the folder.
        search: folders with the metadata of distributions; None for those of `sys.path`.
    """
    folder, project = package.parent, dict[str, Any]()
    if (folder / "pyproject.toml").is_file():
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text).get("project", {})
    checkout = folder if "name" in project else None
    owner = next(_owners(package, search), None)
    if owner is not None:
        return Origin(owner.name, owner.version, checkout, is_installed=True)
    named = str(project.get("name", DISTRIBUTION))
    return Origin(named, str(project.get("version", "unknown")), checkout, is_installed=False)


def origin_warnings(package: Path = PACKAGE, search: Sequence[str] | None = None) -> list[str]:
    """Return a sentence for each sign that another `probekit` than the intended one is imported.

    Args:
        package: the imported folder.
        search: folders with the metadata of distributions; None for those of `sys.path`.
    """
    own = find_origin(package, search)
    rivals = {one.name: one for one in _owners(package, search) if one.name != own.name}
    warnings = [
        f"the distribution {rival.name} {rival.version} has installed files in the same folder, "
        f"{package}. Uninstall both and install one again: pip uninstall {own.name} {rival.name}"
        for rival in rivals.values()
    ]
    if not own.is_installed:
        found = f"{DISTRIBUTION} is not installed in this environment"
        other = next(iter(_distributions(search, DISTRIBUTION)), None)
        if other is not None:
            found = f"{other.name} {other.version} is installed in {other.locate_file('')}"
        warnings.append(
            f"no installed distribution contains the imported package {package}; {found}. Python "
            "imports the first folder `probekit` of sys.path"
        )
    return warnings


def _distributions(search: Sequence[str] | None, name: str | None = None) -> Iterable[Distribution]:
    return distributions(name=name, path=sys.path if search is None else [*search])


def _owners(package: Path, search: Sequence[str] | None) -> Iterator[Distribution]:
    """Yield the distributions that installed a folder or are an editable install of it.

    `DISTRIBUTION` comes first, and again in its place.
    """
    init_file = f"{package.name}/__init__.py"
    for distribution in chain(_distributions(search, DISTRIBUTION), _distributions(search)):
        if init_file in (distribution.read_text("RECORD") or ""):
            located = Path(str(distribution.locate_file(init_file))).resolve()
            is_owner = located == package / "__init__.py"
        else:
            source = json.loads(distribution.read_text("direct_url.json") or "{}")
            is_editable = bool(source.get("dir_info", {}).get("editable", False))
            folder = url2pathname(urlsplit(source["url"]).path) if is_editable else ""
            is_owner = is_editable and Path(folder).resolve() == package.parent
        if is_owner:
            yield distribution
