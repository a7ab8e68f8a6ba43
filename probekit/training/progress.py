"""Metadata of a training state, and the check that a run can be resumed from it.

`state.safetensors` contains a digest of all its bytes and the digests of the log and the tokens.
They detect accidental changes, not a deliberate replacement with a new digest.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from probekit.errors import CheckpointError, ConfigError
from probekit.provenance import canonical_json, digest
from probekit.training.recipe import Recipe, fixed_settings
from probekit.training.schedule import learning_rate

LOG, RECIPE, STATE = "log.csv", "recipe.yaml", "state.safetensors"
CHUNK = 1 << 22  # bytes hashed at a time
_SEAL = "digest"  # metadata key of the digest
_BLANK = "0" * 64  # placeholder for the digest while the bytes are hashed
_START_AGAIN = "Delete it to start from the beginning."


@dataclass(frozen=True)
class Progress:
    """Run and step that a training state belongs to.

    Attributes:
        step: number of completed steps.
        recipe: the recipe as JSON.
        corpus: digest of the texts.
        tokens: digest of the tokens.
        log: digest of log.csv up to this step.
    """

    step: int
    recipe: str
    corpus: str
    tokens: str
    log: str

    @classmethod
    def of(cls, step: int, recipe: Recipe, corpus: str, tokens: str, log: str) -> Progress:
        """Return the progress of a run with a recipe."""
        return cls(step, canonical_json(recipe.model_dump(mode="json")), corpus, tokens, log)

    def to_metadata(self) -> dict[str, str]:
        """Return safetensors metadata with a placeholder for the digest."""
        return {name: str(value) for name, value in asdict(self).items()} | {_SEAL: _BLANK}

    def check_recipe(self, recipe: Recipe, folder: Path) -> None:
        """Raise if a recipe would have changed the results of the completed steps.

        Args:
            recipe: recipe of the run to be resumed.
            folder: run folder, for messages.

        Raises:
            ConfigError: a setting that affects completed steps differs, or the run has already
                completed more steps.
            CheckpointError: this release cannot read the recipe in the state.
        """
        try:
            before = Recipe.model_validate_json(self.recipe)
        except ValueError as error:
            raise CheckpointError(
                f"{folder / STATE} has a recipe of another release ({error}). {_START_AGAIN}"
            ) from error
        _check_settings(before, recipe, folder)
        if self.step > recipe.training.steps:
            raise ConfigError(
                f"{folder} has already completed {self.step:,} steps, more than training.steps, "
                f"{recipe.training.steps:,}."
            )
        _check_schedule(before, recipe, folder, self.step)


def _check_settings(before: Recipe, recipe: Recipe, folder: Path) -> None:
    old, new = fixed_settings(before), fixed_settings(recipe)
    differing = [f"{key} was {old[key]!r}, is {new[key]!r}" for key in new if old[key] != new[key]]
    if differing:
        raise ConfigError(
            f"{folder} contains a run of another recipe: {'; '.join(differing)}. Set another "
            "`name` or --out, or delete the folder."
        )


def _check_schedule(before: Recipe, recipe: Recipe, folder: Path, done: int) -> None:
    rates = [[learning_rate(n, r.training) for n in range(done)] for r in (before, recipe)]
    changed = [n for n, (old, new) in enumerate(zip(*rates, strict=True)) if old != new]
    if changed:
        raise ConfigError(
            f"{folder}: training.steps, decay and decay_steps would give the completed step "
            f"{changed[0] + 1:,} another learning rate ({done:,} steps are completed). Set them so "
            "that the decay begins later, or start a new run."
        )


def sealed(content: bytes) -> tuple[bytes, memoryview]:
    """Replace the placeholder in a state by its digest; return the header and the tensor bytes."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header, tensors = content[:end], memoryview(content)[end:]
    assert header.count(_entry(_BLANK)) == 1
    return header.replace(_entry(_BLANK), _entry(digest([header, tensors]))), tensors


def _entry(value: str) -> bytes:
    return f'"{_SEAL}":"{value}"'.encode()


def is_pretraining(folder: Path) -> bool:
    """Return whether a folder is that of a pretraining run, finished or not."""
    return any((folder / name).is_file() for name in (RECIPE, LOG))


def read_progress(folder: Path, *, verify: bool = True) -> Progress | None:
    """Return the progress of the run in a folder; None if it has no state yet.

    Args:
        folder: the folder of the run.
        verify: whether to read the whole state and verify its digest, not only its header.

    Raises:
        CheckpointError: the state is damaged or from another release.
    """
    path = folder / STATE
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return _progress(file, verify=verify)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_state(path, error) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def damaged_state(path: Path, why: object) -> CheckpointError:
    """Return the error for a state that cannot be used."""
    return CheckpointError(f"{path} is damaged or from another release ({why}). {_START_AGAIN}")


def _progress(file: BinaryIO, *, verify: bool) -> Progress:
    header = _header(file)
    metadata: dict[str, Any] = json.loads(header[8:])["__metadata__"]
    written = metadata.pop(_SEAL, None)
    if written is None:
        raise ValueError("it has no digest")
    parts = chain([header.replace(_entry(written), _entry(_BLANK))], _chunks(file))
    if verify and digest(parts) != written:
        raise ValueError("its digest does not match")
    return Progress(step=int(metadata.pop("step")), **metadata)


def _header(file: BinaryIO) -> bytes:
    size = file.read(8)
    if len(size) < 8:
        raise ValueError("it is truncated")
    return size + file.read(min(struct.unpack("<Q", size)[0], 10**8))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")
