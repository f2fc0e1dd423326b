"""EAGLE-3 heads: what a checkpoint may say, and how a chain is drafted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.drafters.eagle3_checkpoint import load_eagle3_checkpoint
from blockdraft.drafters.eagle3_config import default_taps, read_eagle3_config
from blockdraft.errors import CheckpointError, ConfigError, NotFoundError, PairError, UnsupportedModelError
from blockdraft.testing.tiny_eagle3 import TinyEagle3, tiny_eagle3_config, write_tiny_eagle3
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=2, num_hidden_layers=6)
INFO = TARGET.info
TOKENS = list(range(10, 50))
FEATURES = torch.randn(40, 3 * INFO.hidden_size, generator=torch.Generator().manual_seed(1))


def drafter_at(tmp_path: Path, head: TinyEagle3 | None = None, **options: Any) -> Eagle3Drafter:
    return Eagle3Drafter.load(write_tiny_eagle3(tmp_path, INFO, head or TinyEagle3()), TARGET, **options)


def ask_for(drafter: Eagle3Drafter, num_tokens: int, count: int = 4, state: Any = None, **sampling: Any) -> Ask:
    if state is None:
        state = drafter.begin(TOKENS[:num_tokens])
        drafter.observe(state, Observation(committed_ids=(), target_hidden=FEATURES[: num_tokens - 1]))
    return Ask(
        state=state,
        token_ids=TOKENS[:num_tokens],
        num_draft_tokens=count,
        sampling=SamplingParams(**sampling),
        random=PositionalRandom(7),
    )


def test_the_default_taps_are_the_outputs_before_the_published_inputs() -> None:
    """The reference reads the inputs of layers 2, n // 2 and n - 3; the input of layer i is the output of i - 1."""
    assert default_taps(32) == (1, 15, 28)


@pytest.mark.parametrize(
    ("keys", "taps"),
    [
        ({}, None),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, (1, 15, 28)),  # vLLM and speculators: inputs
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}},
            (1, 15, 28),
        ),  # SpecForge, SGLang: outputs
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, None),
        ({"target_layer_ids": [1, 9, 17, 25, 33]}, (1, 9, 17, 25, 33)),  # DeepSpec: outputs
        (
            {
                "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]},
            },
            (1, 15, 28),
        ),
    ],
    ids=str,
)
def test_taps_are_read_in_the_convention_of_their_key(keys: dict[str, Any], taps: tuple[int, ...] | None) -> None:
    config = tiny_eagle3_config(INFO, TinyEagle3(target_layer_ids=None))
    assert read_eagle3_config(config | keys).target_layer_ids == taps


def test_every_packaging_of_one_head_drafts_the_same(tmp_path: Path) -> None:
    """DeepSpec and speculators have the same layer; the official one has no norms on queries and keys."""
    proposals = []
    for packaging in ("deepspec", "speculators"):
        drafter = drafter_at(tmp_path / packaging, TinyEagle3(packaging=packaging))  # type: ignore[arg-type]
        assert drafter.traits.target_layer_ids == (0, 1, 2)
        proposals.append(drafter.propose([ask_for(drafter, 20)])[0])
    assert proposals[0] == proposals[1]


def test_without_taps_and_lengths_the_published_ones_are_used(tmp_path: Path) -> None:
    drafter = drafter_at(tmp_path, TinyEagle3(target_layer_ids=None))
    assert drafter.traits.target_layer_ids == (1, 2, 2)
    assert drafter.traits.max_draft_tokens == 3
    assert drafter.describe()["target_layer_ids"] == (1, 2, 2)
    assert drafter_at(tmp_path, max_draft_tokens=6).traits.max_draft_tokens == 6


@pytest.mark.parametrize(
    ("packaging", "keys", "error", "message"),
    [
        ("speculators", {"speculators_model_type": "peagle"}, UnsupportedModelError, "P-EAGLE"),
        ("speculators", {"norm_before_residual": None}, CheckpointError, "set `norm_before_residual`"),
        ("speculators", {"norm_before_fc": True, "fc_norm": True}, CheckpointError, "both true"),
        ("speculators", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, UnsupportedModelError, "target's embedding"),
        ("speculators", {"target_layer_ids": [0, 1, 3]}, CheckpointError, r"contradicts itself about the tapped"),
        ("official", {"norm_output": True}, UnsupportedModelError, "`norm_output`"),
        ("official", {"num_hidden_layers": 2, "layer_types": None}, UnsupportedModelError, "more than one layer"),
        ("official", {"model_type": "deepseek_v3"}, UnsupportedModelError, "a DeepSeek backbone"),
        ("official", {"model_type": "phi"}, UnsupportedModelError, "the backbone 'phi'"),
        ("official", {"attention_bias": True}, UnsupportedModelError, "biases in the attention"),
        ("official", {"target_hidden_size": 4096}, UnsupportedModelError, "hidden size other than"),
        ("official", {"hidden_act": "relu"}, UnsupportedModelError, "`hidden_act` 'relu'"),
        ("official", {"eagle_config": {"use_aux_hidden_state": False}}, UnsupportedModelError, "use_aux_hidden_state"),
        ("official", {"layer_types": ["sliding_attention"]}, CheckpointError, "set `sliding_window`"),
        ("official", {"layer_types": []}, None, ""),
        ("official", {"layer_types": ["chunked"]}, CheckpointError, "full_attention or sliding_attention"),
        ("official", {"vocab_size": None}, CheckpointError, "lacks `vocab_size`"),
    ],
)
def test_what_a_config_may_not_say(
    packaging: Any, keys: dict[str, Any], error: type[Exception] | None, message: str
) -> None:
    config = tiny_eagle3_config(INFO, TinyEagle3(packaging=packaging)) | keys
    if error is None:
        read_eagle3_config(config)
        return
    with pytest.raises(error, match=message):
        read_eagle3_config(config)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.pop("norm.weight"), CheckpointError, "missing: norm.weight"),
        (lambda t: t.update({"midlayer.extra": torch.ones(1)}), CheckpointError, "surplus: layers.0.extra"),
        (lambda t: t.update({"midlayer.self_attn.q_proj.bias": torch.ones(1)}), UnsupportedModelError, "biases"),
        (lambda t: t.update({"mask_hidden": torch.ones(1)}), UnsupportedModelError, "P-EAGLE"),
        (
            lambda t: t.update({"fc.weight": torch.ones(INFO.hidden_size, 5 * INFO.hidden_size)}),
            CheckpointError,
            "3 target layers",
        ),
        (lambda t: t.update({"d2t": torch.zeros(40, dtype=torch.long) + 90}), CheckpointError, "`d2t` does not map"),
    ],
)
def test_what_tensors_may_not_be(change: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    folder = write_tiny_eagle3(tmp_path, INFO, TinyEagle3(draft_vocab_size=40))
    tensors = _tensors(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(error, match=message):
        load_eagle3_checkpoint(folder, INFO)


def test_files_that_hold_no_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_eagle3_config(INFO, TinyEagle3())))
    with pytest.raises(NotFoundError, match=r"holds no .safetensors file"):
        load_eagle3_checkpoint(tmp_path, INFO)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"as a pickle .* convert it"):
        load_eagle3_checkpoint(tmp_path, INFO)
    with pytest.raises(UnsupportedModelError, match="GGUF"):
        load_eagle3_checkpoint(tmp_path / "head.gguf", INFO)


def test_another_target_is_refused_with_all_reasons(tmp_path: Path) -> None:
    folder = write_tiny_eagle3(tmp_path, INFO, TinyEagle3(packaging="deepspec", target_layer_ids=(1, 2, 5)))
    other = tiny_target("llama", hidden_size=36, vocab_size=80).info
    with pytest.raises(
        PairError, match=r"hidden size: .* 48, .* 36; vocabulary: .*; number of .*; target layers \[5\]"
    ):
        load_eagle3_checkpoint(folder, other)


def test_own_tables_are_used_and_copies_are_not_kept(tmp_path: Path) -> None:
    own = drafter_at(tmp_path / "own", TinyEagle3(has_own_tables=True))
    assert own._embedding is not TARGET.embedding_weight
    folder = write_tiny_eagle3(tmp_path / "copy", INFO, TinyEagle3())
    copies = {"embed_tokens.weight": TARGET.embedding_weight, "lm_head.weight": TARGET.head_weight}
    save_file(_tensors(folder) | copies, folder / "model.safetensors")
    copied = Eagle3Drafter.load(folder, TARGET)
    assert copied._embedding is TARGET.embedding_weight
    assert copied._head is TARGET.head_weight
    assert own.propose([ask_for(own, 20)]) != copied.propose([ask_for(copied, 20)])


def test_a_proposal_equals_the_walk_over_its_own_tokens(tmp_path: Path) -> None:
    """Slot k of a longer draft is slot 0 of what a fresh pass over [tokens, first k drafts] gives."""
    drafter = drafter_at(tmp_path, TinyEagle3(packaging="speculators"))
    ids = drafter.propose([ask_for(drafter, 20)])[0].draft_ids
    network = drafter.network
    with torch.inference_mode():
        for k in range(1, 4):
            cache = network.new_cache()
            embed = TARGET.embedding_weight
            hidden = network.run(network.fuse(FEATURES[:19]), embed[torch.tensor(TOKENS[1:20])], [cache], [19])[-1:]
            for token in ids[:k]:
                hidden = network.run(hidden, embed[torch.tensor([token])], [cache], [1])
            assert int((network.normed(hidden) @ TARGET.head_weight.T).argmax()) == ids[k]


def test_a_reduced_vocabulary_drafts_its_own_tokens(tmp_path: Path) -> None:
    drafter = drafter_at(tmp_path, TinyEagle3(draft_vocab_size=40))
    assert drafter.choice.target_ids is not None
    own = set(drafter.choice.target_ids.tolist())
    for temperature in (0.0, 1.0):
        proposal = drafter.propose([ask_for(drafter, 20, temperature=temperature)])[0]
        assert set(proposal.draft_ids) <= own
    assert proposal.draft_probs is not None
    assert proposal.draft_probs.shape == (3, INFO.vocab_size)
    assert set(proposal.draft_probs.sum(0).nonzero()[:, 0].tolist()) == own


def test_p_min_stops_before_the_slot_and_never_looks_at_its_token(tmp_path: Path) -> None:
    plain = drafter_at(tmp_path, max_draft_tokens=6, with_confidence=True)
    whole = [plain.propose([ask_for(plain, n, 6, temperature=1.0)])[0] for n in (9, 20, 33)]
    threshold = sorted(value for proposal in whole for value in proposal.confidence or ())[9]
    drafter = drafter_at(tmp_path, max_draft_tokens=6, p_min=threshold)
    assert drafter.traits.confidence_is_sequential
    cut = drafter.propose([ask_for(drafter, n, 6, temperature=1.0) for n in (9, 20, 33)])
    for short, long in zip(cut, whole, strict=True):
        expected = next((k for k, value in enumerate(long.confidence or ()) if value < threshold), 6)
        assert short.draft_ids == long.draft_ids[:expected]
    assert {len(proposal) for proposal in cut} != {6}
    with pytest.raises(ConfigError, match="p_min must be in"):
        drafter_at(tmp_path, p_min=1.5)


def test_greedy_drafts_of_sampled_requests_are_deterministic(tmp_path: Path) -> None:
    drafter = drafter_at(tmp_path, draft_sampling="greedy")
    assert drafter.traits.is_deterministic
    sampled = drafter.propose([ask_for(drafter, 20, temperature=1.0)])[0]
    assert sampled == drafter.propose([ask_for(drafter, 20)])[0]
    assert sampled.draft_probs is None
