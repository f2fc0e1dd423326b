"""Text to token ids and back, for model folders and GGUF files alike.

Decoding is done here on the bytes of each token, not by the library, so that text streamed token by token is
exactly the text decoded at once, and a character that is split over tokens appears when it is complete.

Importing this module does not import torch; loading a folder does (through transformers' AutoTokenizer).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.convert_slow_tokenizer import bytes_to_unicode

from blockdraft.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError
from blockdraft.models.gguf_tokenizer import read_gguf_tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tokenizer_config.json")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PADDING_TOKEN = re.compile(rb"\[PAD\d+\]")
_BYTE_OF_CHARACTER = {character: byte for byte, character in bytes_to_unicode().items()}
_THINKING_NAMES = ("enable_thinking", "thinking")
_FINGERPRINT_TEXT = "Hello  world, it's 2024!\n\tif x_1 == 3.14159: return 'naïve' + \"你好 🎉\"\r\n    SCREAMing café"


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a model folder or of a .gguf file.

    Raises:
        CheckpointError: there is no tokenizer, or it is damaged.
        UnsupportedModelError: it is of a kind that is not supported.
    """
    if path.is_dir():
        backend = _read_folder(path)
        return Tokenizer(backend, name=path.name, eos_ids=_folder_eos_ids(path, backend))
    found = read_gguf_tokenizer(path)
    return Tokenizer(found.backend, name=path.stem, eos_ids=found.eos_ids)


class Tokenizer:
    """Encodes, decodes and renders chats for one model."""

    def __init__(self, backend: Any, *, name: str, eos_ids: Iterable[int]) -> None:
        self.name = name
        """Of the folder or file it came from, for messages."""
        self.eos_ids = frozenset(eos_ids)
        """Every token that ends an answer."""
        self._backend = backend
        self._core = backend.backend_tokenizer
        self._core.no_truncation()
        self._core.no_padding()
        self._to_bytes, self.strips_first_space = _byte_reader(self._core, name)
        self._bytes: dict[int, bytes] = {}
        self.special_ids = frozenset(
            token_id for token_id, token in self._core.get_added_tokens_decoder().items() if token.special
        )

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the model has one."""
        token_id: int | None = self._backend.bos_token_id
        return token_id

    @property
    def vocab_size(self) -> int:
        """How many token ids exist; a model's output may be wider."""
        size: int = self._core.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; the texts of special tokens in it become these tokens.

        `add_special_tokens` puts the begin and end tokens around it if the model wants them. A byte that a
        byte-level vocabulary lacks (a few control characters in small ones) is left out.
        """
        ids: list[int] = self._core.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are no UTF-8 read as U+FFFD, unknown ids as nothing."""
        stream = self.stream(skip_special_tokens=skip_special_tokens)
        return "".join([*map(stream.push, token_ids), stream.flush()])

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """Return a decoder that takes one token at a time."""
        return TextStream(self, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; empty for an id that does not exist."""
        if token_id not in self._bytes:
            token = self._core.id_to_token(token_id)
            self._bytes[token_id] = b"" if token is None else self._to_bytes(token)
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        r"""Return how one token reads; part of a character reads like `\xe2`."""
        return self.token_bytes(token_id).decode(errors="backslashreplace")

    @property
    def has_chat_template(self) -> bool:
        """True if `encode_chat` can be used."""
        return bool(self._backend.chat_template)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, system: str | None = None, thinking: bool | None = None
    ) -> str:
        """Return the prompt that the model's chat template makes of a conversation, ready for the answer.

        `system` is put in front of the messages; `thinking` sets the template's own switch.

        Raises:
            ConfigError: the model has no chat template, or the template has no switch for thinking.
            RequestError: the template refuses these messages.
        """
        template = self._backend.chat_template
        if not template:
            raise ConfigError(
                f"{self.name} has no chat template; send plain text, or choose an instruction-tuned model"
            )
        options = {} if thinking is None else {self._thinking_name(): thinking}
        turns = [dict(message) for message in messages]
        if system is not None:
            if turns and turns[0].get("role") == "system":
                raise RequestError(
                    "the messages begin with a system message and `system` is given too; send one of them"
                )
            turns.insert(0, {"role": "system", "content": system})
        try:
            text: str = self._backend.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise RequestError(f"the chat template of {self.name} refuses these messages: {error}") from error
        return text

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, system: str | None = None, thinking: bool | None = None
    ) -> list[int]:
        """Return the token ids of `render_chat`; the template itself writes the begin token."""
        return self.encode(self.render_chat(messages, system=system, thinking=thinking), add_special_tokens=False)

    @cached_property
    def fingerprint(self) -> str:
        """The same for tokenizers that turn text into the same tokens: a SHA-256 over vocabulary and a sample.

        Padding at the end of the vocabulary does not count, nor whether it was read from a folder or a GGUF file.
        """
        digest = sha256(repr(self.encode(_FINGERPRINT_TEXT, add_special_tokens=False)).encode())
        for piece in self._trimmed_vocabulary():
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()

    @property
    def knows_thinking(self) -> bool:
        """True if the chat template has, or writes, a part for thoughts."""
        template = str(self._backend.chat_template or "")
        return "enable_thinking" in template or "<think>" in template

    @property
    def chat_template_sha256(self) -> str:
        """SHA-256 of the chat template's text; of the empty text if there is none."""
        return sha256(str(self._backend.chat_template or "").encode()).hexdigest()

    def same_vocabulary(self, other: Tokenizer) -> str | None:
        """Return None if every id stands for the same token in both, else the first difference in one line.

        Padding at the end of either vocabulary does not count.
        """
        mine, theirs = self._trimmed_vocabulary(), other._trimmed_vocabulary()
        for token_id, (left, right) in enumerate(zip_longest(mine, theirs)):
            if left != right:
                reads = [
                    "missing" if piece is None else repr(piece.decode(errors="replace")) for piece in (left, right)
                ]
                return f"token {token_id} is {reads[0]} in {self.name} and {reads[1]} in {other.name}"
        return None

    def _trimmed_vocabulary(self) -> list[bytes]:
        pieces = [self.token_bytes(token_id) for token_id in range(self.vocab_size)]
        while pieces and (not pieces[-1] or _PADDING_TOKEN.fullmatch(pieces[-1])):
            pieces.pop()
        return pieces

    def _thinking_name(self) -> str:
        """Return what the template calls its switch: a variable, so named in a statement and not in quotes."""
        template = str(self._backend.chat_template)
        for name in _THINKING_NAMES:
            if re.search(rf"{{%(?:(?!%}}).)*?(?<![\w.'\"]){name}(?![\w'\"])", template, flags=re.DOTALL):
                return name
        raise ConfigError(f"the chat template of {self.name} has no switch for thinking; leave `thinking` unset")


class TextStream:
    """Turns tokens into text one at a time; all `push` results and `flush` together are `decode` of all tokens."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_first_space

    def push(self, token_id: int) -> str:
        """Return the text that is complete with this token; often empty in the middle of a character."""
        if token_id in self._skipped:
            return ""
        return self._strip_first(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """Return what is left at the end of an answer: U+FFFD for an unfinished character."""
        return self._strip_first(self._decoder.decode(b"", final=True))

    def _strip_first(self, text: str) -> str:
        if not (text and self._strip):
            return text
        self._strip = False
        return text.removeprefix(" ")


def _byte_reader(core: Any, name: str) -> tuple[Callable[[str], bytes], bool]:
    """Return how a token becomes bytes, and whether the first space of a text is an artefact of encoding."""
    state = {} if core.decoder is None else json.loads(core.decoder.__getstate__())
    steps = {step["type"]: step for step in state.get("decoders", [state] if state else [])}
    if "ByteLevel" in steps:
        return _byte_level_bytes, False
    if "ByteFallback" in steps:
        strip = steps.get("Strip", {})
        return _sentencepiece_bytes, strip.get("content") == " " and strip.get("start", 0) > 0
    if "Metaspace" in steps:
        return _sentencepiece_bytes, steps["Metaspace"].get("prepend_scheme") != "never"
    raise UnsupportedModelError(
        f"the tokenizer of {name} decodes with {' + '.join(steps) or 'nothing'}; "
        f"supported are byte-level BPE and SentencePiece tokenizers"
    )


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:  # an added token, stored as it reads
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _read_folder(path: Path) -> Any:
    """Return the folder's tokenizer as transformers loads it, from local files only and without running any code."""
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(f"{path} has no tokenizer; copy tokenizer.json and tokenizer_config.json into it")
    from transformers import AutoTokenizer  # noqa: PLC0415  (imports torch)

    try:
        backend = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever transformers meets, down to a bare Exception from `tokenizers`
        raise CheckpointError(f"the tokenizer in {path} cannot be loaded: {error}") from error
    if not backend.is_fast:
        raise UnsupportedModelError(
            f"the tokenizer in {path} ({type(backend).__name__}) has no fast version; add a tokenizer.json"
        )
    return backend


def _folder_eos_ids(path: Path, backend: Any) -> set[int]:
    """Collect the end tokens that generation_config.json, config.json and the tokenizer name."""
    ids: set[int] = set() if backend.eos_token_id is None else {backend.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        file = path / name
        if not file.is_file():
            continue
        config = json.loads(file.read_text(encoding="utf-8"))
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id")
            ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return ids
