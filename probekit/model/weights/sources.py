"""Locating a model: the one that ships with probekit, a local folder, or the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from probekit.errors import CheckpointError, ConfigError, MissingError, nearest
from probekit.model.weights.files import shard_of_tensors

# Names on the hub without an organisation.
PUBLISHED_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
KNOWN_MODELS = ("mini", *PUBLISHED_NAMES)
MINI = Path(__file__).parents[1] / "mini"

# Files of a model that are downloaded: the config alone, with the vocabulary, or with all weights.
Files = Literal["config", "vocabulary", "all"]

HPARAMS = "hparams.json"  # config of OpenAI's original checkpoints of GPT-2
# Sets of files with GPT-2's vocabulary, in order of precedence.
VOCABULARY_FILES = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
)
# Files next to the vocabulary that not every model has.
OPTIONAL_FILES = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("additional_chat_templates/default.jinja", "chat_template.jinja", "generation_config.json"),
)
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# After the name of a model: keys of its config.json that are ignored, as in `gpt2?ignore=note`.
IGNORE = "?ignore="
_OFFLINE_ADVICE = (
    "To work offline, put config.json, model.safetensors (or pytorch_model.bin), vocab.json and "
    "merges.txt into one folder and give its path as the model, or use the model `mini`, which "
    "ships with probekit."
)


def find_model(
    source: str | Path,
    files: Files = "all",
    check: Callable[[Path], object] = str,
    vocabulary: Sequence[tuple[str, ...]] = VOCABULARY_FILES,
) -> Path:
    """Return the folder with the files of a model; download them if necessary.

    `mini` is the shipped model, and published names such as `gpt2` refer to the hub. Any other name
    is the path of an existing folder, or else a hub name, `org/name` or `org/name@revision`.

    Args:
        source: name or path.
        files: files of a model on the hub to download.
        check: called, for a model on the hub, with the folder as soon as it has config.json; raises
            before the download of weights that cannot be used.
        vocabulary: sets of files of the vocabulary; the first that is complete is downloaded.

    >>> sorted(path.name for path in find_model("mini").iterdir())
    ['README.md', 'config.json', 'digests.json', 'merges.txt', 'model.safetensors', 'vocab.json']

    Raises:
        MissingError: there is no such folder or model, it lacks a file, or the download fails.
        ConfigError: the name is empty, that of a file, or neither a path nor a valid hub name.
        CheckpointError: the hub's local cache, or an index of shards, is damaged.
        Exception: that of `check`.
    """
    folder = local_folder(source)
    if folder is not None:
        return folder
    name, _, revision = _without_ignored(source).partition("@")
    # Importing the hub's client takes a quarter of a second.
    from probekit.hub import constants, errors, hf_hub_download, how_to_access, is_hub_reachable

    # Without this check the hub's client retries for half a minute, or minutes behind a firewall.
    is_online = is_hub_reachable()
    fetch = partial(
        hf_hub_download, name, revision=revision or None, local_files_only=not is_online
    )
    try:
        # An adapter is refused where the folder is read.
        configs = [("adapter_config.json", "config.json"), ("config.json",)]
        config = _fetch_first(fetch, name, configs, is_online)
        check(config.parent)
        if files == "all":
            weight_file = _fetch_first(fetch, name, [(file,) for file in WEIGHT_FILES], is_online)
            is_index = weight_file.suffix == ".json"
            shards = shard_of_tensors(weight_file).values() if is_index else ()
            for shard in sorted(set(shards)):
                fetch(shard)
        if files != "config":
            optional = [((file,), ("config.json",)) for file in OPTIONAL_FILES]  # one is there
            for choices in (vocabulary, *optional):
                _fetch_first(fetch, name, choices, is_online)
    except errors.LocalEntryNotFoundError as error:
        raise MissingError(
            f"The model {source!r} is not in the hub's local cache ({constants.HF_HUB_CACHE}), and "
            f"the hub could not be reached. {_OFFLINE_ADVICE}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise MissingError(
            f"The model {name!r} on the hub has no revision {revision!r}."
        ) from error
    except errors.GatedRepoError as error:
        raise MissingError(f"The model {name!r} {how_to_access(name)}") from error
    except errors.RepositoryNotFoundError as error:
        raise MissingError(
            f"The hub has no model {name!r}, or it is private and no token is set. "
            f"{nearest(name, KNOWN_MODELS)}"
        ) from error
    except UnicodeDecodeError as error:  # the hub's client reads the name of a commit from a file
        raise CheckpointError(
            f"The hub's local cache of {name!r} is damaged: a file in its folder refs is not text. "
            f"Delete that folder in {constants.HF_HUB_CACHE} and run again to download it again."
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{source!r} is neither a folder nor a valid hub name.") from error
    except errors.HfHubHTTPError as error:
        raise MissingError(f"Downloading {source!r} failed: {error}. {_OFFLINE_ADVICE}") from error
    return config.parent


def at_revision(source: str | Path, revision: str | None) -> str | Path:
    """Return the name `org/name@revision` of a model of the hub; `source` itself without revision.

    >>> at_revision("EleutherAI/pythia-70m", "step1000")
    'EleutherAI/pythia-70m@step1000'

    Raises:
        ConfigError: `source` is a folder or `mini`, or contains another revision.
    """
    if revision is None:
        return source
    name, _, given = _without_ignored(source).partition("@")
    is_path = isinstance(source, Path) or _is_path(name) or Path(name).is_dir()
    if is_path or name == "mini":
        raise ConfigError(
            f"The model {str(source)!r} is a folder, which has no revision {revision!r}. Leave the "
            "revision out, or give the name of a model on the hub, org/name."
        )
    if given not in ("", revision):
        raise ConfigError(
            f"The model {source!r} contains the revision {given!r}, but the revision {revision!r} "
            "is given too. Give one of them."
        )
    return ignoring(f"{name}@{revision}", ignored_keys(source))


def ignoring(source: str | Path, keys: Iterable[str]) -> str | Path:
    """Return the name of a model with keys of its config.json that are ignored.

    >>> ignoring("org/name@main", ["note"]), ignoring("mini", [])
    ('org/name@main?ignore=note', 'mini')
    """
    keys = list(dict.fromkeys((*ignored_keys(source), *keys)))
    return f"{_without_ignored(source)}{IGNORE}{','.join(keys)}" if keys else source


def ignored_keys(source: str | Path) -> tuple[str, ...]:
    """Return the keys of config.json that are ignored according to the name of a model."""
    return tuple(filter(None, str(source).partition(IGNORE)[2].split(",")))


def _without_ignored(source: str | Path) -> str:
    return str(source).partition(IGNORE)[0]


def name_in_memory(kind: str, digest: str) -> str:
    """Return the name of a network that was passed in Python, in place of that of a source.

    >>> name_in_memory("GPT2", "0123456789abcdef")
    'GPT2 in memory 01234567'
    """
    return f"{kind} in memory {digest[:8]}"


def vocabulary_files(folder: Path) -> list[Path]:
    """Return the first complete set of `VOCABULARY_FILES` in a folder; empty if there is none."""
    formats = ([folder / name for name in files] for files in VOCABULARY_FILES)
    return next((paths for paths in formats if all(path.is_file() for path in paths)), [])


# Common misspellings of published names.
_ALIASES = {"gpt-2": "gpt2", "gpt2-small": "gpt2", "gpt2-base": "gpt2", "gpt2-sm": "gpt2"}


def local_folder(source: str | Path) -> Path | None:
    """Return the local folder of a model, or None if `source` can only be a hub name.

    Raises:
        MissingError: there is no such folder, or no model of that name.
        ConfigError: the name is empty, that of a file, or not a valid path.
    """
    text = _without_ignored(source)
    if isinstance(source, str) and text in PUBLISHED_NAMES:
        return None
    if not text.strip():
        raise ConfigError("The name of the model is empty. Give `mini`, a hub name or a folder.")
    if isinstance(source, str) and text == "mini":
        return MINI
    try:
        folder = Path(text).expanduser()
        is_folder, is_other = folder.is_dir(), folder.exists()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"The model {text[:80]!r} is not a valid path ({error}).") from error
    if is_folder:
        return folder
    if is_other:
        raise ConfigError(f"The model {text!r} is a file, not a folder. Give its folder.")
    if isinstance(source, Path) or _is_path(text) or folder.is_absolute():
        raise MissingError(f"There is no model folder {folder.absolute()}.")
    if "/" not in text and text.partition("@")[0] not in PUBLISHED_NAMES:
        near = _ALIASES.get(text.lower())
        suggestion = f"Nearest: {near}." if near else nearest(text.lower(), KNOWN_MODELS)
        raise MissingError(
            f"No model has the name {text!r}. {suggestion} For another model, give the path of its "
            "folder or `org/name` on the hub."
        )
    return None


def _is_path(name: str) -> bool:
    """Return whether a name has the form of a path, and cannot be `org/name` on the hub."""
    return name.startswith((".", "~", "/")) or "\\" in name or name.count("/") > 1


def _fetch_first(
    fetch: Callable[[str], str], name: str, choices: Sequence[tuple[str, ...]], is_online: bool
) -> Path:
    """Download the first set of files that the hub has completely; return its last file.

    Offline it is the first set in the local cache.
    """
    from probekit.hub import errors

    absent: errors.LocalEntryNotFoundError | None = None
    for files in choices:
        try:
            return [Path(fetch(file)) for file in files][-1]
        except errors.LocalEntryNotFoundError as error:
            if is_online:  # the connection was lost, and the model may have this set
                raise
            absent = error  # offline, the local cache may have another of the sets
        except errors.EntryNotFoundError:
            continue
    if absent is not None:
        raise absent
    expected = " or ".join(" + ".join(files) for files in choices)
    raise MissingError(f"The model {name!r} on the hub has no {expected}.")
