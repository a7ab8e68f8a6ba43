"""Data sets of the Hugging Face hub, and folders that its library has written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from probekit.data.frames import dataset_table
from probekit.data.table import Table
from probekit.errors import ConfigError, DataError, MissingError, nearest
from probekit.provenance import install_command
from probekit.section import URL, Section, rule_error

_COMMIT = re.compile("[0-9a-f]{40}")  # hash of a commit
_SAVED = ("dataset_dict.json", "state.json")  # files of `save_to_disk`


class HubSection(Section):
    """A data set of the Hugging Face hub, or a folder that its library reads."""

    name: str = Field(
        min_length=1,
        examples=["stanfordnlp/sst2"],
        description="name on the hub, or a folder: one written by `save_to_disk`, or one with "
        "Parquet, CSV or JSON files; a relative path is resolved like that of `model.source`",
    )
    revision: str | None = Field(None, description="hash of a commit; null for a folder")
    config: str | None = Field(None, description="name of the configuration, if there are several")
    split: str | None = Field(None, description="name of the split; null for the only one")
    train: str | None = Field(None, description="instead of `split`: split of the training rows")
    test: str | None = Field(None, description="split of the test rows, together with `train`")

    @model_validator(mode="after")
    def _is_consistent(self) -> HubSection:
        is_folder, commit = Path(self.name).is_absolute(), self.revision or ""
        key = "revision" if commit else ""  # an absent key has no line, so the section is located
        if URL.match(self.name):
            raise rule_error("give a name such as org/name, not a URL", "name")
        if is_folder and commit:
            raise rule_error("a folder has no revision; remove `revision`", "revision")
        if not is_folder and not _COMMIT.fullmatch(commit):
            raise rule_error(
                f"`revision` is {commit or 'missing'}. It must be the hash of a commit: `git "
                f"ls-remote https://huggingface.co/datasets/{self.name} HEAD`. (If {self.name} is "
                "a folder, it does not exist at this path)",
                key,
            )
        if (self.train is None) != (self.test is None) or (self.train and self.split):
            raise rule_error("give either `split`, or both `train` and `test`")
        if self.train is not None and self.train == self.test:
            raise rule_error(f"`train` and `test` are the same split, {self.train}", "test")
        return self


def hub_table(data: HubSection, columns: Collection[str]) -> Table:
    """Return the rows of a split; only the given columns are read.

    Numbers of classes are replaced by the names of the classes.

    Raises:
        ConfigError: the library `datasets` is not installed, the name is invalid, or the split does
            not exist or is not given.
        MissingError: there is no such data set or folder, or the hub cannot be reached.
        DataError: the data set cannot be read.
    """
    if find_spec("datasets") is None:
        raise ConfigError(
            "Data of the hub need the library datasets. Install it with: "
            f"{install_command('datasets')}."
        )
    folder = Path(data.name)
    if not folder.is_absolute():
        folder = _download(data)
    elif not folder.is_dir():
        raise MissingError(f"There is no folder {folder}. Check the path.")
    dataset = _split_of(_load(data, folder), data)
    name = f"{data.name} {data.split}" if data.split else data.name
    return dataset_table(dataset, columns, name)


def _download(data: HubSection) -> Path:
    """Return the folder with the files of a commit in the hub's local cache.

    `datasets.load_dataset` would read any other cached revision if the hub cannot be reached.
    """
    # Importing the hub's client takes a quarter of a second.
    from probekit.hub import constants, errors, how_to_access, is_hub_reachable, snapshot_download

    named = f"The data set {data.name!r} at revision {data.revision}"
    try:
        path = snapshot_download(
            data.name,
            repo_type="dataset",
            revision=data.revision,
            # Otherwise the hub's client retries for half a minute, or minutes behind a firewall.
            local_files_only=not is_hub_reachable(),
        )
    except errors.LocalEntryNotFoundError as error:
        raise MissingError(
            f"{named} is not in the hub's local cache ({constants.HF_HUB_CACHE}), and the hub "
            "could not be reached. To work offline, write it to a folder on another machine with "
            "`datasets.load_dataset(...).save_to_disk(FOLDER)`, copy the folder, and give its path "
            "as the name."
        ) from error
    except errors.GatedRepoError as error:
        raise MissingError(f"{named} {how_to_access(f'datasets/{data.name}')}") from error
    except (errors.RevisionNotFoundError, errors.RepositoryNotFoundError) as error:
        raise MissingError(
            f"{named} does not exist on the hub, or it is private and no token is set. Check name "
            "and revision."
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{data.name!r} is neither a folder nor a valid hub name.") from error
    except errors.HfHubHTTPError as error:
        raise MissingError(f"{named} could not be downloaded: {error}.") from error
    return Path(path)


def _load(data: HubSection, folder: Path) -> Any:
    """Return the `Dataset` or `DatasetDict` in a folder."""
    import datasets

    were_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if any((folder / name).is_file() for name in _SAVED):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder), data.config)
    except (datasets.exceptions.DatasetsError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        raise DataError(f"The data set {data.name} cannot be read: {reason}.") from error
    finally:
        if were_shown:
            datasets.enable_progress_bars()


def _split_of(loaded: Any, data: HubSection) -> Any:
    """Return the split of a loaded data set.

    Raises:
        ConfigError: there is no such split, or several and none is given.
    """
    if not isinstance(loaded, Mapping):
        only_split = str(loaded.split) if loaded.split is not None else None
        if data.split not in (None, only_split):
            raise ConfigError(
                f"{data.name} is a single table without splits, so that there is no split "
                f"{data.split!r}. Remove `split`."
            )
        return loaded
    if data.split is None and len(loaded) > 1:
        raise ConfigError(f"{data.name} has the splits {', '.join(loaded)}. Set `split` to one.")
    split = next(iter(loaded)) if data.split is None else data.split
    if split not in loaded:
        raise ConfigError(f"{data.name} has no split {split!r}. {nearest(split, loaded)}")
    return loaded[split]
