"""Names of models: the one that ships with probekit, a local folder, or one of the hub."""

from collections.abc import Iterable
from pathlib import Path

from probekit.errors import ConfigError, MissingError, nearest

# Names on the hub without an organisation.
PUBLISHED_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
KNOWN_MODELS = ("mini", *PUBLISHED_NAMES)
MINI = Path(__file__).parents[1] / "mini"

HPARAMS = "hparams.json"  # config of OpenAI's original checkpoints of GPT-2
# Sets of files with GPT-2's vocabulary, in order of precedence.
VOCABULARY_FILES = ("tokenizer.json",), ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")
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
# After the name of a model: keys of its config.json that are ignored, as in `gpt2?ignore=note`, or
# what computes it, as in `gpt2?engine=transformers`.
IGNORE, ENGINE = "?ignore=", "?engine="


def at_revision(source: str | Path, revision: str | None) -> str | Path:
    """Return the name `org/name@revision` of a model of the hub; `source` itself without revision.

    >>> at_revision("EleutherAI/pythia-70m", "step1000")
    'EleutherAI/pythia-70m@step1000'

    Raises:
        ConfigError: `source` is a folder or `mini`, or contains another revision.
    """
    if revision is None:
        return source
    name, _, given = without_options(source).partition("@")
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
    return f"{without_options(source)}{IGNORE}{','.join(keys)}" if keys else source


def ignored_keys(source: str | Path) -> tuple[str, ...]:
    """Return the keys of config.json that are ignored according to the name of a model."""
    return tuple(filter(None, str(source).partition(IGNORE)[2].split(",")))


def without_options(source: str | Path) -> str:
    """Return the name of a model without the keys that are ignored, and without its engine."""
    return str(source).partition(IGNORE)[0].partition(ENGINE)[0]


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
    text = without_options(source)
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
    if is_other and text.endswith(".gguf"):
        return folder.parent
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
