"""Models on the native runtime: the numbers of torch to eight bits, and what is said where they cannot run."""

from pathlib import Path

import pytest
import torch

from blockdraft.errors import ConfigError, UnsupportedModelError
from blockdraft.models import load
from blockdraft.models.base import Segment
from blockdraft.models.load import load_target
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import tiny_packed_target, tiny_target, write_tiny_model

pytestmark = pytest.mark.native

WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
IDS = torch.randint(3, 90, (40,), generator=torch.Generator().manual_seed(0)).tolist()


def outputs(target, ids=IDS, layers=(2, 0)):
    return target.forward([Segment(token_ids=ids, cache=target.new_cache(), num_logits=len(ids))], layers)


def assert_close(ours, theirs):
    """Eight bits leave an error of about one part in a hundred."""
    assert (ours - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("vocab_size", [96, 101])
def test_families_compute_what_torch_computes(family, vocab_size):
    native = outputs(tiny_packed_target(family, vocab_size=vocab_size))
    expected = outputs(tiny_target(family, vocab_size=vocab_size, **WIDTHS))
    assert native.logits.shape == expected.logits.shape
    assert_close(native.logits, expected.logits)
    assert_close(native.target_hidden, expected.target_hidden)


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0", "BF16", "Q5_0"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gguf_files_of_every_type(tmp_path: Path, family, quant):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", family, quant, head_dim=32)
    native, torch_target = load_target(path, runtime="native"), load_target(path, dtype="float32")
    assert isinstance(native, PackedDecoder)
    assert native.info.quantization == torch_target.info.quantization
    assert native.info.num_parameters == torch_target.info.num_parameters
    assert_close(outputs(native).logits, outputs(torch_target).logits)
    if quant.startswith(("Q4", "Q8")):
        torch.testing.assert_close(native.embedding_weight, torch_target.embedding_weight, rtol=0, atol=0)
        torch.testing.assert_close(native.head_weight, torch_target.head_weight, rtol=0, atol=0)


def test_folders_run_too(tmp_path: Path):
    folder = write_tiny_model(tmp_path / "tiny", "qwen2", **WIDTHS)
    assert_close(outputs(load_target(folder, runtime="native")).logits, outputs(load_target(folder)).logits)


def test_auto_takes_the_kernels_where_it_can_and_says_where_not(tmp_path: Path, monkeypatch):
    notes: list[str] = []
    good, odd = tmp_path / "good.gguf", tmp_path / "odd.gguf"
    write_tiny_gguf(good, head_dim=32)
    write_tiny_gguf(odd, head_dim=16)
    assert isinstance(load_target(good, device="cpu", runtime="auto", notify=notes.append), PackedDecoder)
    assert notes == []
    assert not isinstance(load_target(odd, device="cpu", runtime="auto", notify=notes.append), PackedDecoder)
    assert notes == [
        "computing in torch, as the native kernels cannot run this model: its head size 16 is no multiple of 32"
    ]
    assert not isinstance(load_target(good, device="cpu", dtype="float32", runtime="auto"), PackedDecoder)
    monkeypatch.setattr(load, "why_unavailable", lambda: "this installation came without native kernels")
    assert not isinstance(load_target(good, device="cpu", runtime="auto", notify=notes.append), PackedDecoder)
    assert notes[1:] == ["computing in torch, which is slower on a CPU: this installation came without native kernels"]
    with pytest.raises(ConfigError, match=r"no native runtime: this installation.*--runtime torch"):
        load_target(good, runtime="native")


def test_what_the_kernels_cannot_do_is_refused_when_they_are_asked_for(tmp_path: Path):
    experts = write_tiny_gguf(tmp_path / "experts.gguf", "qwen3_moe", head_dim=32)
    with pytest.raises(UnsupportedModelError, match="no experts; take --runtime torch"):
        load_target(experts, runtime="native")
    with pytest.raises(ConfigError, match="leave --device and --dtype out"):
        load_target(experts, dtype="float32", runtime="native")
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        load_target(experts, runtime="nativ")


def test_torch_keeps_one_thread_beside_the_kernels(tmp_path: Path, monkeypatch):
    """Its threads would spin on their cores; the kernels take as many as it had."""
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", head_dim=32)
    load.load_model(str(path), runtime="torch")
    assert seen == []
    load.load_model(str(path), runtime="native")
    assert seen == [1]


def test_caches_grow_without_losing_what_they_hold():
    target = tiny_packed_target()
    cache, logits = target.new_cache(), []
    for start in range(0, 400, 10):
        ids = [(start + i) % 90 + 3 for i in range(10)]
        logits.append(target.forward([Segment(token_ids=ids, cache=cache, num_logits=10)]).logits)
    whole = outputs(target, [i % 90 + 3 for i in range(400)])
    assert cache.capacity >= 400
    assert torch.equal(torch.cat(logits), whole.logits)


def test_rows_of_which_only_the_most_likely_token_is_wanted_bring_no_logits():
    target = tiny_packed_target("llama", vocab_size=101)
    full = outputs(target)
    assert full.greedy_ids == full.logits.argmax(-1).tolist()

    def segment(only_greedy):
        return Segment(token_ids=IDS, cache=target.new_cache(), num_logits=len(IDS), only_greedy=only_greedy)

    lean = target.forward([segment(True)], (2, 0))
    assert lean.greedy_ids == full.greedy_ids
    assert lean.logits.shape == (0, 101)
    assert torch.equal(lean.target_hidden, full.target_hidden)
    # One sequence that needs them is enough to have them for all.
    mixed = target.forward([segment(True), segment(False)])
    assert torch.equal(mixed.logits, torch.cat([full.logits, full.logits]))
