"""Our DFlash drafter against the reference package (PyPI `dflash`): same block hidden states, same proposals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

reference = pytest.importorskip("dflash.model", reason="the reference needs `pip install --no-deps dflash==0.1.0`")

TARGET = tiny_target("qwen3", seed=5, num_hidden_layers=4)
KINDS: dict[str, tuple[TinyDrafter, dict[str, Any]]] = {
    "full": (TinyDrafter(), {}),
    "nested keys": (TinyDrafter(packaging="z-lab-nested"), {}),
    "specforge": (TinyDrafter(packaging="specforge"), {}),
    "sliding causal": (TinyDrafter(sliding_window=9), {}),
    "sliding non-causal": (TinyDrafter(sliding_window=9, is_causal=False), {}),
    "full causal": (TinyDrafter(is_causal=True), {}),
    "one sliding, one full": (TinyDrafter(sliding_window=9), {"layer_types": ["sliding_attention", "full_attention"]}),
    "window of exactly the block": (TinyDrafter(sliding_window=4, is_causal=False), {}),
    "flat rope keys": (TinyDrafter(), {"rope_parameters": None, "rope_theta": 5e5}),
    "yarn": (
        TinyDrafter(),
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "copied partial rotary key": (
        TinyDrafter(),
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "logit and embedding scales": (
        TinyDrafter(),
        {"final_logit_softcapping": 20.0, "output_multiplier": 0.5, "input_embedding_scale": 0.5},
    ),
}


class _ReferenceDrafter:
    """The reference's own steps of one round: embed, run, crop the cache, head, argmax."""

    def __init__(self, folder: Path) -> None:
        self.model, self.loading = reference.DFlashDraftModel.from_pretrained(folder, output_loading_info=True)
        self.model.eval()
        self.cache = reference._make_cache(self.model.config)

    @torch.inference_mode()
    def draft(self, features: Tensor, anchor_id: int, start: int, num_rows: int) -> tuple[Tensor, Tensor]:
        scale = float(reference._draft_value(self.model.config, "input_embedding_scale", 1.0))
        ids = torch.tensor([[anchor_id] + [self.model.mask_token_id] * (num_rows - 1)])
        hidden = self.model(
            target_hidden=features[None],
            noise_embedding=torch.nn.functional.embedding(ids, TARGET.embedding_weight) * scale,
            position_ids=torch.arange(start - len(features), start + num_rows)[None],
            past_key_values=self.cache,
            use_cache=True,
        )[:, 1 - num_rows :]
        reference._crop_to(self.cache, start)
        return hidden[0], self.model.compute_logits(hidden, lambda rows: rows @ TARGET.head_weight.T)[0]


@pytest.mark.parametrize("name", KINDS)
def test_rounds_with_a_growing_context_equal_the_reference_package(name: str, tmp_path: Path) -> None:
    spec, overrides = KINDS[name]
    folder = write_tiny_drafter(tmp_path, TARGET.info, spec, **overrides)
    theirs, ours = _ReferenceDrafter(folder), DFlashDrafter.load(folder, TARGET)
    assert not any(theirs.loading.values()), theirs.loading
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, TARGET.info.vocab_size, (80,), generator=generator).tolist()
    features = torch.randn(80, theirs.model.fc.in_features, generator=generator)
    state = ours.begin(tokens[:7])
    drafted: set[tuple[int, ...]] = set()
    done = 0
    # Prompt of 7 tokens, then rounds that commit 1 to 4 tokens; the context ends far behind every window.
    for round_index, start in enumerate([7, 8, 12, 13, 16, 20, 21, 25, 29, 33, 34, 38, 42]):
        num_rows = 4 if round_index % 3 else 3
        new = features[done:start]
        expected_hidden, expected_logits = theirs.draft(new, tokens[start], start, num_rows)
        ours.observe(state, Observation(committed_ids=tokens[done + 1 : start + 1], target_hidden=new))
        ask = Ask(
            state=state,
            token_ids=tokens[: start + 1],
            num_draft_tokens=num_rows - 1,
            sampling=SamplingParams(),
            random=PositionalRandom(0),
        )
        (proposal,) = ours.propose([ask])
        with torch.inference_mode():
            hidden, logits = ours._run_block([ask], [num_rows - 1])
        torch.testing.assert_close(hidden, expected_hidden, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert proposal.draft_ids == tuple(expected_logits.argmax(-1).tolist())
        drafted.add(proposal.draft_ids)
        done = start
    assert len(drafted) > 6  # the drafts vary, so agreement means something


def test_sampled_drafts_report_the_distribution_of_the_reference_package(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter())
    theirs, ours = _ReferenceDrafter(folder), DFlashDrafter.load(folder, TARGET)
    tokens = list(range(10, 22))
    features = torch.randn(11, theirs.model.fc.in_features, generator=torch.Generator().manual_seed(2))
    _, logits = theirs.draft(features, tokens[-1], 11, 4)
    expected = reference._sampling_probs(logits, 0.7, top_p=0.8, top_k=12)
    state = ours.begin(tokens)
    ours.observe(state, Observation(committed_ids=[tokens[-1]], target_hidden=features))
    sampling = SamplingParams(temperature=0.7, top_p=0.8, top_k=12)
    ask = Ask(state=state, token_ids=tokens, num_draft_tokens=3, sampling=sampling, random=PositionalRandom(4))
    (proposal,) = ours.propose([ask])
    torch.testing.assert_close(proposal.draft_probs, expected, atol=1e-5, rtol=1e-4)
