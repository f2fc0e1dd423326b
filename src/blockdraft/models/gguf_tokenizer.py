"""A tokenizer from the metadata of a GGUF file.

Covers byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`). The text is cut as llama.cpp cuts it, without
Unicode normalisation; tests/parity/test_tokenizer_llamacpp.py compares the two token by token. The converter
in transformers is not used for this: where it does not know a pre-tokenizer (`smollm` among them) it takes
GPT-2's without saying so, and it takes seconds.

Ref: GGUF specification, keys `tokenizer.ggml.*`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from blockdraft.errors import CheckpointError, UnsupportedModelError, nearest_name
from blockdraft.models.weights.gguf_header import read_gguf_header

_PREFIX = "tokenizer.ggml."

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Values of `tokenizer.ggml.token_type` that matter here."""

_END_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001  (that bar is DeepSeek's)
    "<|return|>",
    "<|call|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
)
"""Tokens that end a turn in the models we know; files often name only one of them as end of sequence."""


@dataclass(frozen=True)
class _PreTokenizer:
    """How text is cut before merging, and what else the name in `tokenizer.ggml.pre` stands for."""

    split: pre_tokenizers.PreTokenizer
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Unless the file says otherwise."""


def _pattern(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Cut at each match of the first pattern, the pieces at each match of the second, and so on."""
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _cl100k(*, digits: str, letters: str = r"\p{L}") -> str:
    """Return the pattern of OpenAI's cl100k or a variant: how many digits stay together, what is a letter."""
    alternatives = (
        r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+",
        digits,
        rf" ?[^\s{letters}\p{{N}}]+[\r\n]*",
        _SPACES,
    )
    return "|".join(alternatives)


_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_WORDS = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# llama.cpp tells upper from lower case only within ASCII here, unlike the models' own pattern.
_TEKKEN_UPPER, _TEKKEN_LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_TEKKEN_UPPER}*{_TEKKEN_LOWER}+|{_TEKKEN_UPPER}+{_TEKKEN_LOWER}*)"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_WORDS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES

_SINGLE_DIGITS = _PreTokenizer(_pattern(r"\p{N}", _GPT2_WORDS))
_LLAMA3 = _PreTokenizer(_pattern(_cl100k(digits=r"\p{N}{1,3}")), ignore_merges=True, add_bos=True)
_QWEN2 = _PreTokenizer(_pattern(_cl100k(digits=r"\p{N}")))

PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    "gpt-2": _PreTokenizer(_pattern(_GPT2_WORDS)),
    "default": _PreTokenizer(_pattern(r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", "[0-9]{3}")),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _PreTokenizer(_pattern(_cl100k(digits=r"\p{N}", letters=r"\p{L}\p{M}"))),
    "glm4": _PreTokenizer(_pattern(_cl100k(digits=r"\p{N}{1,3}"))),
    "deepseek-v3": _PreTokenizer(_pattern(r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS)),
    "tekken": _PreTokenizer(_pattern(_TEKKEN), ignore_merges=True, add_bos=True),
}
"""Values of `tokenizer.ggml.pre` that are supported; each one is compared with llama.cpp by a test."""


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """What a GGUF file says about its tokenizer."""

    backend: Any  # PreTrainedTokenizerFast
    eos_ids: frozenset[int]


def read_gguf_tokenizer(path: Path) -> GgufTokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        UnsupportedModelError: the kind of tokenizer, or its pre-tokenizer, is not supported.
        CheckpointError: the file is damaged or its vocabulary contradicts itself.
    """
    metadata = read_gguf_header(path).metadata
    keys = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    tokens: list[str] = keys.get("tokens") or []
    if not tokens:
        raise CheckpointError(f"{path} holds no tokenizer (tokenizer.ggml.tokens); use a GGUF of the whole model")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise CheckpointError(f"the vocabulary of {path} lists a token twice; convert the model again")
    kind = keys.get("model")
    if kind == "gpt2":
        backend, add_bos = _byte_level(path, keys, vocab)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(path, keys, vocab), True
    else:
        raise UnsupportedModelError(
            f"{path} has a tokenizer of kind {kind!r}; supported are 'gpt2' (byte-level BPE) and 'llama' "
            f"(SentencePiece BPE)"
        )
    eos_ids = _end_ids(keys, vocab)
    _add_special_tokens(backend, keys, tokens, eos_ids)
    names = {
        f"{role}_token": tokens[keys[f"{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if keys.get(f"{key}_token_id", len(tokens)) < len(tokens)
    }
    _add_template(
        backend,
        before=names.get("bos_token") if keys.get("add_bos_token", add_bos) else None,
        after=names.get("eos_token") if keys.get("add_eos_token", False) else None,
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **names,
    )
    return GgufTokenizer(backend=fast, eos_ids=eos_ids)


def _byte_level(path: Path, keys: Mapping[str, Any], vocab: dict[str, int]) -> tuple[Backend, bool]:
    """Return byte-level BPE, and whether it adds a begin token by default."""
    name = keys.get("pre")
    if name is None:
        raise UnsupportedModelError(
            f"{path} does not say how text is cut before merging (tokenizer.ggml.pre); "
            f"convert the model again with a current llama.cpp"
        )
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{path} needs the pre-tokenizer {name!r}, which is not supported{nearest_name(name, PRE_TOKENIZERS)}; "
            f"supported are {', '.join(PRE_TOKENIZERS)}. Use the model's folder with a tokenizer.json instead"
        )
    pre = PRE_TOKENIZERS[name]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in keys.get("merges", ()))]
    for left, right in merges:
        if not (left in vocab and right in vocab and left + right in vocab):  # the library would panic
            raise CheckpointError(
                f"{path} has a rule to merge {left} and {right} to a token that it does not list; "
                f"convert the model again"
            )
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    backend.pre_tokenizer = pre.split
    backend.decoder = decoders.ByteLevel()
    return backend, pre.add_bos


def _sentencepiece(path: Path, keys: Mapping[str, Any], vocab: dict[str, int]) -> Backend:
    """Return SentencePiece BPE; its merges follow from the scores of the tokens."""
    scores = keys.get("scores")
    if scores is None or len(scores) != len(vocab):
        raise CheckpointError(f"{path} has no score for each token (tokenizer.ggml.scores); convert the model again")
    special = {token for token, kind in zip(vocab, keys.get("token_type", ()), strict=False) if kind == _CONTROL}
    merges = generate_merges(vocab, dict(zip(vocab, scores, strict=True)), skip_tokens=special)
    unknown = next((token for token, token_id in vocab.items() if token_id == keys.get("unknown_token_id", 0)), None)
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if keys.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = spaces
        backend.decoder = decoders.Sequence(steps)
    return backend


def _end_ids(keys: Mapping[str, Any], vocab: Mapping[str, int]) -> frozenset[int]:
    named = {keys[key] for key in ("eos_token_id", "eot_token_id", "eom_token_id") if key in keys}
    known = {vocab[text] for text in _END_TEXTS if text in vocab}
    if {"<|return|>", "<|call|>", "<|end|>"} <= vocab.keys():
        known.remove(vocab["<|end|>"])  # in this dialect it ends a message within a turn
    return frozenset(token_id for token_id in named | known if token_id < len(vocab))


def _add_special_tokens(backend: Backend, keys: Mapping[str, Any], tokens: Sequence[str], ends: frozenset[int]) -> None:
    """Keep control and user-defined tokens whole; the former are special and not part of the answer's text."""
    kinds = keys.get("token_type") or [0] * len(tokens)
    special = [
        AddedToken(token, normalized=False, special=True)
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _UNKNOWN) or token_id in ends
    ]
    backend.add_special_tokens(special)
    plain = [
        AddedToken(token, normalized=False, special=False)
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _USER_DEFINED and token_id not in ends
    ]
    backend.add_tokens(plain)


def _add_template(backend: Backend, *, before: str | None, after: str | None) -> None:
    """Put the begin and end tokens around encoded text."""
    ends = [token for token in (before, after) if token is not None]
    if ends:
        backend.post_processor = processors.TemplateProcessing(
            single=[*([before] if before else []), "$A", *([after] if after else [])],
            special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(ends)],
        )
