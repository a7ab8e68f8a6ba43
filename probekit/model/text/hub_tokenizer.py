"""Tokenizers of the hub's tokenizer.json, computed by the library `tokenizers`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Encoder

from probekit.errors import CheckpointError, DataError, MissingError
from probekit.model.config import check_token_ids
from probekit.model.text.byte_pairs import CHARACTER_BYTE
from probekit.model.text.chat import ChatTemplate
from probekit.model.text.settings import SETTINGS, TokenizerSettings
from probekit.model.text.tokenizer import TokenizedText, Tokenizer, utf8
from probekit.model.weights.files import json_object, read_verified
from probekit.model.weights.sources import OPTIONAL_FILES
from probekit.provenance import digest_json

TOKENIZER, CONFIG = "tokenizer.json", "config.json"
TEMPLATES = ("additional_chat_templates/default.jinja", "chat_template.jinja")  # by precedence
GENERATION = "generation_config.json"  # chat models list their ends of a turn there
_PLAIN_MODEL = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
# Classes of transformers that build these entries themselves, and the class of each model type that
# has one. The classes of other types, and those of _BACKENDS, read tokenizer.json.
_CLASSES = json.loads(Path(__file__).with_name("tokenizer_classes.json").read_text("utf-8"))
_BACKENDS = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
_SWITCHES = ("ignore_merges", "byte_fallback")
_MAX_GROWTH = 100  # of a text by the steps before the merges; those of published files double it


class HubTokenizer(Tokenizer):
    """Tokenizer of a tokenizer.json: byte-level BPE, or SentencePiece's BPE with single bytes.

    Of the tokens that the file puts around a text, only beginning-of-text is added, depending on
    `bos`. Padding and truncation of the file are not used.

    Args:
        files: contents of tokenizer.json and, if the model has them, of tokenizer_config.json,
            special_tokens_map.json, added_tokens.json, config.json, chat_template.jinja and
            generation_config.json, by name.
        where: the folder, for messages.

    Raises:
        CheckpointError: a file is damaged, or the tokenizer is of another kind.
    """

    def __init__(self, files: Mapping[str, bytes], where: Path | str = "") -> None:
        # The network saves its config.json.
        self._files = {name: text for name, text in files.items() if name != CONFIG}
        self._where = Path(where)
        path = self._where / TOKENIZER
        content = json_object(path, files[TOKENIZER])
        self._settings = TokenizerSettings.read(files, self._where)
        self._config = json_object(self._where / CONFIG, files.get(CONFIG, b"{}"))
        _check_model(path, content.get("model"))
        _check_growth(path, content)
        check_token_ids(self._config, self._where / CONFIG)
        self._generation = json_object(self._where / GENERATION, files.get(GENERATION, b"{}"))
        check_token_ids(self._generation, self._where / GENERATION)
        # Null in place of the unused steps: the post-processor would shorten offsets and add
        # special tokens, and the length of a text is up to the caller.
        unused = dict.fromkeys(("post_processor", "truncation", "padding"))
        self._content = self._with_named_tokens(path, content) | unused
        self._encoder = _encoder(path, self._content)
        # Whether tokens are written in GPT-2's characters of bytes.
        steps = [content.get(key) for key in ("decoder", "pre_tokenizer")]
        self._is_byte_level = '"ByteLevel"' in json.dumps(steps)
        self._processor = content.get("post_processor")
        self._check_first_space(path)
        self._check_class(path, content)

    @classmethod
    def from_folder(cls, folder: Path) -> HubTokenizer:
        """Return the tokenizer of a folder.

        Raises:
            MissingError: there is no tokenizer.json.
            CheckpointError: a file is damaged, or the tokenizer is of another kind.
        """
        if not (folder / TOKENIZER).exists():
            raise MissingError(
                f"{folder} has no {TOKENIZER}. Save the tokenizer there too, by its method "
                "`save_pretrained`, or download that file from the model's repository."
            )
        known = (TOKENIZER, CONFIG, *OPTIONAL_FILES)
        names = [name for name in known if (folder / name).exists()]
        try:
            return cls({name: read_verified(folder / name) for name in names}, folder)
        except OSError as error:
            raise CheckpointError(f"A file in {folder} cannot be read ({error}).") from error

    def _with_named_tokens(self, path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content with all tokens that the settings add or name.

        Raises:
            CheckpointError: the tokens cannot be read, or the settings do not describe one.
        """
        try:
            added = {token["content"]: token for token in content.get("added_tokens") or ()}
            ids = content["model"]["vocab"] | {text: token["id"] for text, token in added.items()}
            for text in dict.fromkeys([*self._settings.named(ids), *self._settings.added]):
                token = added.get(text, {"id": ids[text], "content": text})
                added[text] = token | self._settings.flags(text, added.get(text))
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"{path}: vocab or added_tokens cannot be read.") from error
        return {**content, "added_tokens": [*added.values()]}

    def _check_first_space(self, path: Path) -> None:
        """Check that the file puts a space before a text if the settings do.

        Raises:
            CheckpointError: only one of them does.
        """
        stated = self._settings.entries.get("add_prefix_space")
        firsts = map(self._encoder.id_to_token, self._ordinary("a").ids[:1].tolist())
        has_space = any((first or "").startswith(("Ġ", "▁")) for first in firsts)
        if stated not in (None, has_space):
            raise CheckpointError(
                f"{path} puts {'a' if has_space else 'no'} space before a text, but {SETTINGS} has "
                f"add_prefix_space {stated}. Correct one of them."
            )

    def _check_class(self, path: Path, content: Mapping[str, Any]) -> None:
        """Check that transformers' class reads tokenizer.json, or builds what the file has.

        Raises:
            CheckpointError: the class is unknown, or builds something else.
        """
        entries, model_type = self._settings.entries, self._config.get("model_type")
        own = _CLASSES["types"].get(model_type)
        given = entries.get("tokenizer_class") or self._config.get("tokenizer_class") or own
        name = own if model_type == "qwen2" else str(given).removesuffix("Fast")
        is_read = name in _BACKENDS or (name == "LlamaTokenizer" and self._is_byte_level)
        if own is None or is_read:
            return
        space, legacy = entries.get("add_prefix_space"), entries.get("legacy")
        scheme = "never" if space is False else "always" if legacy else "first"
        built = json.dumps(_CLASSES["built"].get(name, {"tokenizer_class": "unknown"}))
        built = built.replace('space": false', f'space": {json.dumps(bool(space))}')
        steps = {key: content.get(key) for key in ("normalizer", "pre_tokenizer")}
        usual = _encoder(path, {"model": _PLAIN_MODEL, **steps}).to_str()
        usual = re.sub('"trim_offsets": *[a-z]+,', "", usual)
        found = {**json.loads(usual), **{key: content["model"].get(key) for key in _SWITCHES}}
        for key, value in json.loads(built.replace('"first"', f'"{scheme}"')).items():
            if (found.get(key) or None) != (value or None):
                raise CheckpointError(
                    f"{path} has the {key} {found.get(key)}, but transformers' {name} uses {value}."
                    " Save the tokenizer that transformers reads: "
                    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
                )

    @cached_property
    def digest(self) -> str:
        """Digest of the tokenizer, its beginning-of-text token and its chat template."""
        return digest_json([self._content, self._bos, self._template_text])

    @cached_property
    def special(self) -> Mapping[str, int]:
        """Ids of the tokens that encoding never produces, by their text."""
        added = self._encoder.get_added_tokens_decoder().items()
        return {token.content: number for number, token in added if token.special}

    @cached_property
    def _bos(self) -> int | None:
        """Id of the beginning-of-text token; None if there is none, or config.json lists several.

        Qwen's config.json has a bos_token_id, but its tokenizer has no such token, and its models
        were trained without: tokenizer_config.json takes precedence.
        """
        if "bos_token" in self._settings.entries:
            text = self._settings.text("bos_token")
            return None if text is None else self._encoder.token_to_id(text)
        number = self._config.get("bos_token_id")
        return number if isinstance(number, int) else None

    @cached_property
    def own_bos(self) -> bool | None:
        """Whether the model's own tokenizer puts beginning-of-text before each text; else None.

        In transformers the post_processor of a tokenizer.json takes precedence over add_bos_token.
        """
        encoder = _encoder(
            self._where / TOKENIZER, {"model": _PLAIN_MODEL, "post_processor": self._processor}
        )
        tokens = encoder.encode("a")
        if not any(tokens.special_tokens_mask):
            return False
        is_bos = tokens.special_tokens_mask == [1, 0] and tokens.ids[0] == self._bos
        return True if is_bos else None

    @cached_property
    def ends_of_text(self) -> tuple[str, ...]:
        """The text of each token that ends a text, or a turn of a chat."""
        texts = [self._settings.text("eos_token")]
        for entries in (self._config, self._generation):
            ids = entries.get("eos_token_id")
            listed = ids if isinstance(ids, list) else [ids]
            texts += [self._encoder.id_to_token(n) for n in listed if isinstance(n, int)]
        # None for an absent eos_token, and for an id that is no token.
        return tuple(dict.fromkeys(text for text in texts if text))

    @cached_property
    def bytes_by_id(self) -> Mapping[int, bytes]:
        """The bytes of each token; SentencePiece's mark of a space is a space."""
        plain = {}
        for token, number in self._encoder.get_vocab(with_added_tokens=True).items():
            if self._is_byte_level and all(character in CHARACTER_BYTE for character in token):
                plain[number] = bytes(CHARACTER_BYTE[character] for character in token)
            elif not self._is_byte_level and re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
                plain[number] = bytes([int(token[3:5], 16)])
            else:
                plain[number] = (token if self._is_byte_level else token.replace("▁", " ")).encode()
        added = self._encoder.get_added_tokens_decoder()
        return plain | {number: token.content.encode() for number, token in added.items()}

    def _bytes(self, token: int) -> bytes:
        # Embeddings are often padded: a model can predict ids that are no token.
        is_unused = token >= 0 and token not in self.bytes_by_id
        return f"<unused {token}>".encode() if is_unused else super()._bytes(token)

    def _ordinary(self, text: str, *, special: bool = False) -> TokenizedText:
        utf8(text)  # raises DataError at a lone surrogate
        is_split = not special or self._settings.entries.get("split_special_tokens")
        self._encoder.encode_special_tokens = bool(is_split)
        with _library(lambda: f"{self._where / TOKENIZER} cannot tokenize the text {text[:60]!r}"):
            encoding = self._encoder.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        # A normalizer may join an accent to its letter, but a token then has the offsets of the
        # letter alone. It gets all characters after it, up to the next token or a removed space.
        ends, following = offsets[:, 1].copy(), np.append(offsets[1:, 0], len(text))
        for index in np.flatnonzero(following[: len(ends)] > ends):
            joined = re.match(r"\S*", text[ends[index] : following[index]])
            offsets[ends == ends[index], 1] += len(joined[0]) if joined else 0
        return TokenizedText(np.array(encoding.ids, dtype=np.int64), offsets)

    def encode_chat(
        self, text: str, turns: Sequence[tuple[int, int, str, str]] = ()
    ) -> TokenizedText:
        """Return the tokens of a conversation; see `Tokenizer.encode_chat`."""
        if self._template is None:
            return super().encode_chat(text, turns)
        spans = turns or ((0, len(text), "user", ""),)
        turn_texts = [text[start:end] for start, end, *_ in spans]
        others = [one for *_, one in spans]
        for special in self.special:
            if any(special in turn for turn in (*turn_texts, *others)):
                raise DataError(
                    f"The text {text[:60]!r} contains {special}, a special token, which would be "
                    "read as a part of the chat template. Remove it from the text."
                )
        written, places = self._template.render(turn_texts, [one[2] for one in spans], others)
        tokens = self._ordinary(written, special=True)
        # Convert offsets in `written` to offsets in `text`, turn by turn. Each turn sets its tokens
        # and all that follow; the next turn overwrites the latter from its first token on.
        offsets = np.zeros_like(tokens.offsets)
        for (start, end, *_), (first, stop), turn in zip(spans, places, turn_texts, strict=True):
            from_turn = tokens.offsets[:, 1] > first
            moved = tokens.offsets[from_turn].clip(first, stop) - first + start
            # A template may strip a turn, which then begins at its first visible character.
            is_stripped = stop - first < len(turn)
            n_stripped = len(turn) - len(turn.lstrip()) if is_stripped else 0
            offsets[from_turn] = moved + n_stripped
            offsets[tokens.offsets[:, 0] >= stop] = end
        has_bos = self._bos is not None and tokens.ids[:1].tolist() == [self._bos]
        return TokenizedText(tokens.ids, offsets, has_bos)

    @cached_property
    def _template_text(self) -> str | None:
        """Text of the chat template; a file of its own takes precedence, as in transformers."""
        if self._template_file == SETTINGS:
            return self._settings.text("chat_template")
        try:
            return self._files[self._template_file].decode()
        except UnicodeDecodeError as error:
            path = self._where / self._template_file
            raise CheckpointError(f"{path} is not UTF-8: {error}.") from error

    @property
    def _template_file(self) -> str:
        """Name of the file with the chat template."""
        return next((name for name in TEMPLATES if name in self._files), SETTINGS)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        """The chat template with the special tokens that it may write; None without one."""
        if self._template_text is None:
            return None
        where = self._where / self._template_file
        return ChatTemplate(self._template_text, self._settings.tokens, where)


def _encoder(path: Path, content: Mapping[str, Any]) -> Encoder:
    """Return the encoder of the contents of a tokenizer.json.

    Raises:
        CheckpointError: the library refuses an entry.
    """
    with _library(lambda: f"{path} is not a tokenizer: {_wrong_key(content)} cannot be read"):
        return Encoder.from_str(json.dumps(content))


@contextmanager
def _library(failure: Callable[[], str]) -> Iterator[None]:
    """Convert errors of `tokenizers` to a CheckpointError: the text `failure()`, then theirs."""
    try:
        yield
    except BaseException as error:
        # It raises Exception itself or, at a fault of its own, a class that cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise CheckpointError(f"{failure()} ({error}).") from error
        raise


def _wrong_key(content: Mapping[str, Any]) -> str:
    """Return the first key that the library refuses in a tokenizer.json; `model` if no other is."""
    for key in [key for key in content if key != "model"]:
        try:
            with _library(lambda: ""):
                Encoder.from_str(json.dumps({"model": _PLAIN_MODEL, key: content[key]}))
        except CheckpointError:
            return key
    return "model"


def _check_model(path: Path, model: Any) -> None:
    """Raise CheckpointError unless the model is a BPE with a vocabulary and without dropout.

    Raises:
        CheckpointError: it is of another kind, has no vocabulary, or tokenizes at random.
    """
    if not isinstance(model, dict):
        raise CheckpointError(f"{path}: model is {model!r}. Allowed: an object.")
    if model.get("type") != "BPE":
        raise CheckpointError(
            f"{path} describes a tokenizer of type {model.get('type')!r}. Allowed: BPE, which all "
            "supported families use."
        )
    if not model.get("vocab"):
        raise CheckpointError(f"{path}: vocab of the model is empty. Download the file again.")
    if dropout := model.get("dropout"):
        raise CheckpointError(
            f"{path}: dropout of the model is {dropout!r}, which leaves out merges at random, so "
            "that a text has other tokens at each call. It is meant for training. Set it to null."
        )


def _check_growth(path: Path, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a text could grow so much that the library aborts the process.

    Raises:
        CheckpointError: its steps lengthen a text too much, or one is of type Precompiled.
    """
    # A step may contain others. Each may lengthen the text that it gets, so factors are multiplied.
    growth, rest = 1, [content.get("normalizer"), content.get("pre_tokenizer")]
    while rest:
        step = rest.pop()
        rest += step if isinstance(step, list) else []
        if isinstance(step, dict):
            rest += step.values()
            kind, inserted = step.get("type"), [step.get(key) for key in ("content", "prepend")]
            lengths = [len(text) for text in inserted if isinstance(text, str)]
            # At worst, ByteLevel doubles a text, and others insert their own at each character.
            growth *= 2 if kind == "ByteLevel" else max([1, *lengths])
            if kind == "Precompiled":
                raise CheckpointError(
                    f"{path} has a step of type Precompiled. No supported family uses it."
                )
    if growth > _MAX_GROWTH:
        raise CheckpointError(
            f"{path}: its normalizer and pre_tokenizer can make a text longer than {_MAX_GROWTH} "
            "times. Use the file of the model's publisher."
        )
