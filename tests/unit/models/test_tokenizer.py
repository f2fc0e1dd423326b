"""Encoding and decoding are inverse, streaming is decoding, and a tokenizer that would be wrong is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from blockdraft.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the cat sat on the mat, and that is that", "naïve café 你好世界 👋🎉", "x = 123 + 4567\n\treturn x\n" * 3]
TEMPLATE = (
    "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = TEMPLATE + "{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


def write_gguf(path: Path, *, kind: str, tokens: list[str], types: list[int], **keys: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level(path: Path, *, extra: tuple[str, ...] = (), **keys: object) -> Path:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=sorted(alphabet), show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    learnt = json.loads(backend.to_str())["model"]
    keys = {"tokenizer_pre": "smollm", "eos_token_id": 0, "bos_token_id": 1} | keys
    return write_gguf(
        path,
        kind="gpt2",
        tokens=[*SPECIAL, *learnt["vocab"], "<think>", *extra],
        types=[3, 3, 3, *[1] * len(learnt["vocab"]), 4, *[5] * len(extra)],
        token_merges=[" ".join(merge) for merge in learnt["merges"]],
        **keys,
    )


def sentencepiece(path: Path, **keys: object) -> Path:
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    pieces = list(json.loads(backend.to_str())["model"]["vocab"])
    fixed = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return write_gguf(
        path,
        kind="llama",
        tokens=[*fixed, *pieces],
        types=[2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        token_scores=[0.0] * len(fixed) + [-float(rank) for rank in range(len(pieces))],
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
        **keys,
    )


@pytest.fixture(scope="module")
def folder_of_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def bpe(folder_of_models: Path) -> Tokenizer:
    return load_tokenizer(byte_level(folder_of_models / "bpe.gguf", chat_template=TEMPLATE))


@pytest.fixture(scope="module")
def spm(folder_of_models: Path) -> Tokenizer:
    return load_tokenizer(sentencepiece(folder_of_models / "spm.gguf"))


@pytest.fixture(scope="module", params=["bpe", "spm"])
def either(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40)
SPECIAL_TEXT = re.compile(r"<\|.*\|>|</?s>|<unk>|<0x..>")  # becomes a token that is not decoded as text
MIXED = (
    st.lists(st.one_of(TEXTS, st.sampled_from(CORPUS)), max_size=3)
    .map("".join)
    .filter(lambda text: not SPECIAL_TEXT.search(text))
)


# --- text and back ---


@settings(max_examples=150, deadline=None)
@given(text=MIXED)
def test_decoding_an_encoded_text_gives_the_text(either: Tokenizer, text: str) -> None:
    assert either.decode(either.encode(text)) == text


@settings(max_examples=150, deadline=None)
@given(text=MIXED.filter(lambda text: "\ufffd" not in text))
def test_streamed_text_is_the_text_and_never_shows_half_a_character(either: Tokenizer, text: str) -> None:
    stream = either.stream()
    pieces = [stream.push(token_id) for token_id in either.encode(text)]
    assert "".join(pieces) == text
    assert stream.flush() == ""
    assert all("\ufffd" not in piece for piece in pieces)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_tokens_streamed_give_what_they_give_at_once(either: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, either.vocab_size + 3), max_size=30))
    stream = either.stream(skip_special_tokens=False)
    streamed = "".join([*(stream.push(token_id) for token_id in ids), stream.flush()])
    whole = b"".join(either.token_bytes(token_id) for token_id in ids).decode(errors="replace")
    assert streamed == either.decode(ids, skip_special_tokens=False)
    assert streamed == (whole.removeprefix(" ") if either.strips_first_space else whole)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_byte_level_decoding_agrees_with_the_library(bpe: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, bpe.vocab_size - 1), max_size=30))
    for skip in (True, False):
        assert bpe.decode(ids, skip_special_tokens=skip) == bpe._core.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(text=MIXED)
def test_sentencepiece_decoding_agrees_with_the_library(spm: Tokenizer, text: str) -> None:
    ids = spm.encode(text)
    assert spm.decode(ids) == spm._core.decode(ids)


def test_a_character_split_over_tokens_appears_when_it_is_complete(bpe: Tokenizer) -> None:
    stream = bpe.stream()
    ids = bpe.encode("𐍈")
    assert len(ids) == 4
    assert [stream.push(token_id) for token_id in ids] == ["", "", "", "𐍈"]


def test_an_unfinished_character_is_flushed_as_a_replacement(bpe: Tokenizer) -> None:
    stream = bpe.stream()
    assert [stream.push(token_id) for token_id in bpe.encode("𐍈")[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"


def test_special_tokens_are_whole_and_skipped_and_user_defined_ones_are_kept(bpe: Tokenizer) -> None:
    ids = bpe.encode("<think>x<|im_end|>")
    assert (ids[0], ids[-1], len(ids)) == (bpe.vocab_size - 1, 2, 3)
    assert bpe.decode(ids) == "<think>x"
    assert bpe.decode(ids, skip_special_tokens=False) == "<think>x<|im_end|>"


def test_token_text_shows_partial_characters_as_escapes(bpe: Tokenizer) -> None:
    assert [bpe.token_text(token_id) for token_id in bpe.encode("𐍈")] == ["\\xf0", "\\x90", "\\x8d", "\\x88"]
    assert bpe.token_text(2) == "<|im_end|>"
    assert bpe.token_text(10**6) == ""


# --- what the file says ---


def test_begin_and_end_tokens_are_added_as_the_file_says(tmp_path: Path) -> None:
    plain = load_tokenizer(byte_level(tmp_path / "a.gguf"))
    both = load_tokenizer(byte_level(tmp_path / "b.gguf", add_bos_token=True, add_eos_token=True))
    llama = load_tokenizer(byte_level(tmp_path / "c.gguf", tokenizer_pre="llama-bpe"))
    ids = plain.encode("the cat")
    assert both.encode("the cat") == [1, *ids, 0]
    assert both.encode("the cat", add_special_tokens=False) == ids
    assert llama.encode("the cat")[0] == llama.bos_id == 1


def test_every_token_that_ends_a_turn_is_an_end_token(bpe: Tokenizer, spm: Tokenizer, tmp_path: Path) -> None:
    assert bpe.eos_ids == {0, 2}  # <|endoftext|> by the key, <|im_end|> by its text
    assert spm.eos_ids == {2}
    assert load_tokenizer(byte_level(tmp_path / "t.gguf", eot_token_id=7)).eos_ids == {0, 2, 7}


def test_single_digits_are_cut_apart_by_smollm_and_kept_together_by_gpt2(tmp_path: Path) -> None:
    one = load_tokenizer(byte_level(tmp_path / "one.gguf", tokenizer_pre="smollm"))
    all_ = load_tokenizer(byte_level(tmp_path / "all.gguf", tokenizer_pre="gpt-2"))
    assert len(one.encode("4567")) == 4
    assert len(all_.encode("4567")) < 4


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "x.gguf", tokenizer_pre="smollm9")
    with pytest.raises(UnsupportedModelError, match=r"'smollm9', which is not supported \(did you mean 'smollm'\?\)"):
        load_tokenizer(path)


def test_an_unknown_kind_of_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", kind="bert", tokens=["a"], types=[1])
    with pytest.raises(UnsupportedModelError, match="of kind 'bert'"):
        load_tokenizer(path)


def test_a_file_that_names_no_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", kind="gpt2", tokens=["a"], types=[1])
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre"):
        load_tokenizer(path)


def test_a_vocabulary_that_lists_a_token_twice_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", kind="gpt2", tokens=["a", "a"], types=[1, 1])
    with pytest.raises(CheckpointError, match="lists a token twice"):
        load_tokenizer(path)


def test_merges_that_contradict_the_vocabulary_are_refused(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "x.gguf", kind="gpt2", tokens=["a", "b"], types=[1, 1], tokenizer_pre="gpt-2", token_merges=["a b"]
    )
    with pytest.raises(CheckpointError, match="merge a and b to a token that it does not list"):
        load_tokenizer(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "x.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load_tokenizer(path)


# --- chats ---

HELLO = [{"role": "user", "content": "the cat"}]


def test_a_chat_is_rendered_ready_for_the_answer_and_encoded_without_a_second_begin_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level(tmp_path / "x.gguf", chat_template=TEMPLATE, add_bos_token=True))
    text = tokenizer.render_chat(HELLO, system="be brief")
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_chat(HELLO, system="be brief")
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(1) == 3


def test_thinking_sets_the_switch_of_the_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level(tmp_path / "x.gguf", chat_template=THINKING))
    assert tokenizer.render_chat(HELLO, thinking=False).endswith("<think></think>")
    assert not tokenizer.render_chat(HELLO, thinking=True).endswith("<think></think>")


def test_thinking_is_refused_if_the_template_has_no_switch(bpe: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="no switch for thinking"):
        bpe.render_chat(HELLO, thinking=True)


def test_a_model_without_a_chat_template_says_so(spm: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="spm has no chat template"):
        spm.encode_chat(HELLO)


def test_messages_that_the_template_refuses_are_the_requests_fault(bpe: Tokenizer) -> None:
    with pytest.raises(RequestError, match="refuses these messages: no tools"):
        bpe.render_chat([{"role": "tool", "content": ""}])


def test_two_system_messages_are_refused(bpe: Tokenizer) -> None:
    with pytest.raises(RequestError, match="send one of them"):
        bpe.render_chat([{"role": "system", "content": "a"}], system="b")


# --- comparing vocabularies ---


def test_padding_at_the_end_does_not_make_vocabularies_differ(bpe: Tokenizer, tmp_path: Path) -> None:
    padded = load_tokenizer(byte_level(tmp_path / "padded.gguf", extra=("[PAD334]", "[PAD335]")))
    assert padded.vocab_size == bpe.vocab_size + 2
    assert bpe.same_vocabulary(padded) is None
    assert padded.same_vocabulary(bpe) is None


def test_a_surplus_token_and_a_different_token_are_named(bpe: Tokenizer, spm: Tokenizer, tmp_path: Path) -> None:
    longer = load_tokenizer(byte_level(tmp_path / "longer.gguf", extra=("<mask>",)))
    assert bpe.same_vocabulary(longer) == f"token {bpe.vocab_size} is missing in bpe and '<mask>' in longer"
    assert bpe.same_vocabulary(spm) == "token 0 is '<|endoftext|>' in bpe and '<unk>' in spm"


# --- folders ---


@pytest.fixture(scope="module")
def model_folder(bpe: Tokenizer, folder_of_models: Path) -> Path:
    folder = folder_of_models / "model"
    bpe._backend.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 6}}))
    return folder


def test_a_folder_loads_like_the_gguf_it_was_saved_from(model_folder: Path, bpe: Tokenizer) -> None:
    tokenizer = load_tokenizer(model_folder)
    assert tokenizer.same_vocabulary(bpe) is None
    assert tokenizer.encode("\n".join(CORPUS)) == bpe.encode("\n".join(CORPUS))
    assert tokenizer.encode_chat(HELLO) == bpe.encode_chat(HELLO)
    assert tokenizer.special_ids == bpe.special_ids
    assert tokenizer.name == "model"


def test_end_tokens_of_a_folder_come_from_all_its_configs(model_folder: Path) -> None:
    assert load_tokenizer(model_folder).eos_ids == {0, 2, 5, 6}


def test_a_folder_without_a_tokenizer_says_what_to_copy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer; copy tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_folder_whose_tokenizer_is_damaged_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_decodes_in_an_unknown_way_is_refused(tmp_path: Path) -> None:
    Backend(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UnsupportedModelError, match="decodes with nothing"):
        load_tokenizer(tmp_path)


def test_importing_the_module_does_not_import_torch() -> None:
    code = "import sys, blockdraft.models.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
