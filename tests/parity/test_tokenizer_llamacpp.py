# ruff: noqa: RUF001  (texts in many scripts are the point)
"""Our tokenizers against llama.cpp's, on the same files, through a server inside the `xllamacpp` package."""

import json
import random
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from blockdraft.models.gguf_tokenizer import PRE_TOKENIZERS
from blockdraft.models.references import DEFAULT_MODEL, resolve
from blockdraft.models.tokenizer import load_tokenizer

pytest.importorskip("xllamacpp")

from llamacpp_server import LlamaCpp

pytestmark = pytest.mark.slow

FRAGMENTS = [
    "Hello, world!",
    "it's I'LL we'Re don't THEY'VE y'all 'tis o'clock",
    "The year 2024, pi=3.14159265, 1,234,567 and 0x1F; 7 77 777 7777 77777",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # no-op\n\n\nclass A:\n    pass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }\r\n",
    '{"key": [1, 2.5e-3, null], "äöü": "\\u00e9"}',
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x';",
    "https://example.org/a?b=c&d=%20e#f user@example.com C:\\dir\\file.txt",
    "Grüße aus Köln, naïve café, Łódź, Ærøskøbing",
    "cafe\u0301 n\u0303 a\u0308\u0323 combining",
    "Привет, как дела? ЁЛКА",
    "你好，世界！我爱编程。",
    "こんにちは世界、カタカナとひらがな。",
    "안녕하세요 세계",
    "مرحبا بالعالم ١٢٣٤",
    "שלום עולם",
    "नमस्ते दुनिया १२३",
    "สวัสดีครับ ผมชื่ออเล็กซ์",
    "👋🏽 🤖🎉 👨‍👩‍👧‍👦 ❤️ ☺",
    "½ ² ³ Ⅷ ① ٣",
    "$100 €50 £20 ± × ÷ ≤ ∑ → ~ ^ | = + <tag> `code`",
    "«quotes» „low“ ‘single’ … — – ‐",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_end|><|im_end|> <|im_end|>x<|im_start",
    " leading and trailing  ",
    "a  b   c    d     e",
    "\t\ttabs\t \tmixed",
    "\n\n\n",
    "   \n  \n x",
    "line\r\nline\r\rline",
    " ",
    "   ",
    "\u00a0nbsp\u2003em space\u3000ideographic",
    "CamelCase snake_case SCREAMING_CASE kebab-case HTTPServer2Go",
    "!!! ??? ... --- *** ### ((( )))",
    "x" * 70,
    "=" * 40 + "\n" + "-" * 17,
    "\\n is not \n and \\t is not \t",
    "E=mc^2 H2O CO2 3rd 4th B12",
    "\u200b\u200d\ufeffinvisible",
]


def sample_texts() -> list[str]:
    rng = random.Random(20240229)
    texts = list(FRAGMENTS)
    while len(texts) < 200:
        parts = rng.choices(FRAGMENTS, k=rng.randint(1, 4))
        cut = [part[rng.randrange(len(part)) // 2 :] for part in parts]
        texts.append(rng.choice(["", " ", "\n", "  ", "'s ", "1"]).join(cut))
    return texts


def write_model(path: Path, *, kind: str, tokens: list[str], types: list[int], **keys: object) -> Path:
    """Write the smallest llama that llama.cpp loads, with this vocabulary."""
    width = 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    zeros = np.zeros((width, width), np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), width), np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", zeros)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SPECIAL = ["<unk>", "<|im_start|>", "<|im_end|>"]


def train(backend: Backend, alphabet: list[str]) -> tuple[list[str], list[str]]:
    """Return tokens and merges learnt over spaces, digits and punctuation: any cut in another place shows."""
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False, max_token_length=12)
    backend.train_from_iterator([text for text in sample_texts() if "<|" not in text], trainer)
    learnt = json.loads(backend.to_str())["model"]
    return list(learnt["vocab"]), [" ".join(merge) for merge in learnt["merges"]]


@pytest.fixture(scope="module")
def byte_level_vocabulary() -> tuple[list[str], list[str]]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return train(backend, pre_tokenizers.ByteLevel.alphabet())


def differences(path: Path) -> list[tuple[str, list[int], list[int]]]:
    ours, theirs = load_tokenizer(path), LlamaCpp(path)
    return [
        (text, expected, found)
        for text in sample_texts()
        for add_special in (False, True)
        if (expected := theirs.tokenize(text, add_special=add_special))
        != (found := ours.encode(text, add_special_tokens=add_special))
    ]


@pytest.fixture(scope="module")
def default_model() -> Path:
    return resolve(DEFAULT_MODEL).path


def test_default_model_encodes_200_texts_like_llamacpp(default_model: Path) -> None:
    assert len(sample_texts()) == 200
    assert differences(default_model) == []


def test_a_byte_that_the_vocabulary_lacks_is_left_out_like_in_llamacpp(default_model: Path) -> None:
    ours, theirs = load_tokenizer(default_model), LlamaCpp(default_model)
    assert ours.encode("a\x04b") == theirs.tokenize("a\x04b", add_special=False) == ours.encode("a") + ours.encode("b")


def test_default_model_decodes_200_texts_like_llamacpp(default_model: Path) -> None:
    ours, theirs = load_tokenizer(default_model), LlamaCpp(default_model)
    for text in sample_texts():
        ids = ours.encode(text)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.post("/detokenize", tokens=ids)["content"] == text


def test_default_model_chat_prompts_match_llamacpp(default_model: Path) -> None:
    ours, theirs = load_tokenizer(default_model), LlamaCpp(default_model)
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Wie viel ist 12*34? 🤔"},
        {"role": "assistant", "content": "408"},
        {"role": "user", "content": "  And\n\n in <hex>?"},
    ]
    for messages in (turns, turns[:2], turns[1:]):
        prompt = theirs.post("/apply-template", messages=messages)["prompt"]
        assert ours.render_chat(messages) == prompt
        assert ours.encode_chat(messages) == theirs.tokenize(prompt, add_special=True)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizer_cuts_like_llamacpp(
    name: str, byte_level_vocabulary: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    tokens, merges = byte_level_vocabulary
    path = write_model(
        tmp_path / f"{name}.gguf",
        kind="gpt2",
        tokens=[*SPECIAL, *tokens, "<think>"],
        types=[2, 3, 3, *[1] * len(tokens), 4],
        tokenizer_pre=name,
        token_merges=merges,
    )
    assert differences(path) == []


@pytest.mark.parametrize("space", [True, False])
def test_sentencepiece_vocabulary_encodes_like_llamacpp(space: bool, tmp_path: Path) -> None:
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces, _ = train(backend, [])
    pieces = [piece for piece in pieces if "你" not in piece]  # to be written as bytes
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    num_fixed = len(SPECIAL) + 256
    path = write_model(
        tmp_path / "spm.gguf",
        kind="llama",
        tokens=tokens,
        types=[2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        token_scores=[0.0] * num_fixed + [-float(rank) for rank in range(len(pieces))],
        add_space_prefix=space,
        unk_token_id=0,
    )
    assert differences(path) == []
