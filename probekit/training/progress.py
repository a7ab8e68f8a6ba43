"""What a training state records of its run, and the check that a run may be resumed from it.

`state.safetensors` carries a digest of all its bytes, and the digests of the log and the tokens
that belong to it. They detect accidents, not an author who writes a new file with a new digest.
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

LOG, STATE = "log.csv", "state.safetensors"
CHUNK = 1 << 22  # bytes hashed at a time
_SEAL = "digest"  # key of the digest in the metadata of the state
_BLANK = "0" * 64  # takes the place of the digest while the bytes are hashed
_WAY_OUT = "Delete it to begin from the start."


@dataclass(frozen=True)
class Progress:
    """What a training state belongs to.

    Attributes:
        step: steps done.
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
        """Return the progress of a run of a recipe."""
        return cls(step, canonical_json(recipe.model_dump(mode="json")), corpus, tokens, log)

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file, with a blank in place of its digest."""
        return {name: str(value) for name, value in asdict(self).items()} | {_SEAL: _BLANK}

    def check_recipe(self, recipe: Recipe, folder: Path) -> None:
        """Refuse a recipe under which the steps done would have given other numbers.

        Args:
            recipe: of the run that is to be resumed.
            folder: of that run, for the message.

        Raises:
            ConfigError: a setting differs that must not, or there are more steps already.
            CheckpointError: this release cannot read the recipe of the state.
        """
        try:
            before = Recipe.model_validate_json(self.recipe)
        except ValueError as error:
            raise CheckpointError(
                f"{folder / STATE} has a recipe of another release ({error}). {_WAY_OUT}"
            ) from error
        _check_settings(before, recipe, folder)
        if self.step > recipe.training.steps:
            raise ConfigError(
                f"{folder} has {self.step:,} steps already, more than training.steps, "
                f"{recipe.training.steps:,}."
            )
        _check_schedule(before, recipe, folder, self.step)


def _check_settings(before: Recipe, recipe: Recipe, folder: Path) -> None:
    old, new = fixed_settings(before), fixed_settings(recipe)
    differing = [f"{key} was {old[key]!r}, is {new[key]!r}" for key in new if old[key] != new[key]]
    if differing:
        raise ConfigError(
            f"{folder} holds a run of another recipe: {'; '.join(differing)}. Give another `name` "
            "or --out, or delete the folder."
        )


def _check_schedule(before: Recipe, recipe: Recipe, folder: Path, done: int) -> None:
    rates = [[learning_rate(n, r.training) for n in range(done)] for r in (before, recipe)]
    changed = [n for n, (old, new) in enumerate(zip(*rates, strict=True)) if old != new]
    if changed:
        raise ConfigError(
            f"{folder}: training.steps, decay and decay_steps would give step {changed[0] + 1:,} "
            f"another learning rate than it was done with ({done:,} steps are done). Set them such "
            "that the decay begins later, or begin a new run."
        )


def sealed(content: bytes) -> tuple[bytes, memoryview]:
    """Return header and tensors of a state with its digest in place of the blank."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header, tensors = content[:end], memoryview(content)[end:]
    assert header.count(_entry(_BLANK)) == 1
    return header.replace(_entry(_BLANK), _entry(digest([header, tensors]))), tensors


def _entry(value: str) -> bytes:
    return f'"{_SEAL}":"{value}"'.encode()


def read_progress(folder: Path) -> Progress | None:
    """Return the progress of the run in a folder, None if it has no state yet.

    Every byte of the state is digested.

    Raises:
        CheckpointError: the state is damaged or of another release.
    """
    path = folder / STATE
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return _progress(file)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_state(path, error) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def damaged_state(path: Path, why: object) -> CheckpointError:
    """Return the error of a state that cannot be used."""
    return CheckpointError(f"{path} is damaged or of another release ({why}). {_WAY_OUT}")


def _progress(file: BinaryIO) -> Progress:
    header = _header(file)
    metadata: dict[str, Any] = json.loads(header[8:])["__metadata__"]
    written = metadata.pop(_SEAL, None)
    if written is None:
        raise ValueError("it has no digest")
    if digest(chain([header.replace(_entry(written), _entry(_BLANK))], _chunks(file))) != written:
        raise ValueError("its bytes are not those that were written")
    return Progress(step=int(metadata.pop("step")), **metadata)


def _header(file: BinaryIO) -> bytes:
    size = file.read(8)
    if len(size) < 8:
        raise ValueError("it is cut")
    return size + file.read(min(struct.unpack("<Q", size)[0], 10**8))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")
