"""Finding the folder of a model; a model of the hub is downloaded."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from probekit.errors import CheckpointError, ConfigError, MissingError, nearest
from probekit.model.weights import sources
from probekit.model.weights.files import shard_of_tensors
from probekit.model.weights.sources import local_folder

# Files of a model that are downloaded: the config alone, with the vocabulary, or with all weights.
Files = Literal["config", "vocabulary", "all"]
_OFFLINE_ADVICE = (
    "To work offline, put config.json, model.safetensors (or pytorch_model.bin), vocab.json and "
    "merges.txt into one folder and give its path as the model, or use the model `mini`, which "
    "ships with probekit."
)


def find_model(
    source: str | Path,
    files: Files = "all",
    check: Callable[[Path], object] = str,
    vocabulary: Sequence[tuple[str, ...]] = sources.VOCABULARY_FILES,
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
    name, _, revision = sources.without_options(source).partition("@")
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
            weight_file = _fetch_first(
                fetch, name, [(file,) for file in sources.WEIGHT_FILES], is_online
            )
            is_index = weight_file.suffix == ".json"
            shards = shard_of_tensors(weight_file).values() if is_index else ()
            for shard in sorted(set(shards)):
                fetch(shard)
        if files != "config":
            optional = [
                ((file,), ("config.json",)) for file in sources.OPTIONAL_FILES
            ]  # one is there
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
            f"{nearest(name, sources.KNOWN_MODELS)}"
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
