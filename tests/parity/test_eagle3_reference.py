"""Our EAGLE-3 drafter against speculators' Eagle3DraftModel and SpecForge's LlamaForCausalLMEagle3.

Both are training models: they run all rows of a text at once and unroll the draft steps with given tokens. Given
the tokens that we drafted, their logits at the anchor's row, step by step, must be the distributions we drafted from.

The packages are not dependencies. Install them without theirs, or point BLOCKDRAFT_REFERENCE_WHEELS to a folder
with their wheels; the tests that need them are skipped otherwise.
"""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation, Proposal
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.testing.tiny_eagle3 import TinyEagle3, write_tiny_eagle3
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=5, num_hidden_layers=4)
TOKENS = list(range(20, 33))
FEATURES = torch.randn(len(TOKENS) - 1, 3 * TARGET.info.hidden_size, generator=torch.Generator().manual_seed(3))
NUM_STEPS = 4

_LOADS_DATA_WITH = ("openai", "openai.types", "openai.types.chat", "openai.types.completion", "datasets")
"""What speculators imports to fetch training data, and its models do not use."""


def _import(distribution: str, module: str) -> ModuleType:
    """Import a reference module, from an installation or from its wheel."""
    if importlib.util.find_spec(distribution) is None:
        folder = os.environ.get("BLOCKDRAFT_REFERENCE_WHEELS")
        wheel = next(iter(sorted(Path(folder).glob(f"{distribution}-*.whl"))), None) if folder else None
        if wheel is None:
            pytest.skip(f"{distribution} is neither installed nor in BLOCKDRAFT_REFERENCE_WHEELS")
        sys.path.append(str(wheel))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} cannot be imported here: {error}")


def _propose(drafter: Eagle3Drafter) -> Proposal:
    state = drafter.begin(TOKENS)
    drafter.observe(state, Observation(committed_ids=[TOKENS[-1]], target_hidden=FEATURES))
    ask = Ask(
        state=state,
        token_ids=TOKENS,
        num_draft_tokens=NUM_STEPS,
        sampling=SamplingParams(temperature=1.0),
        random=PositionalRandom(9),
    )
    return drafter.propose([ask])[0]


def _text_of(proposal: Proposal) -> tuple[Tensor, Tensor]:
    """Return the token beside each row and the features of each row: the committed ones, then noise nobody may read.

    Shapes: [1, T] and [1, T, M*D].
    """
    ids = torch.tensor([[*TOKENS[1:], *proposal.draft_ids]])
    noise = torch.randn(NUM_STEPS, FEATURES.shape[1], generator=torch.Generator().manual_seed(4))
    return ids, torch.cat((FEATURES, noise))[None]


def _assert_same(drafter: Eagle3Drafter, proposal: Proposal, logits: list[Tensor]) -> None:
    """Shapes: logits [U] for each step, or for the first ones."""
    expected = drafter.choice.to_target_probs(torch.softmax(torch.stack(logits), dim=-1))
    assert len(proposal) == NUM_STEPS
    assert proposal.draft_probs is not None
    torch.testing.assert_close(proposal.draft_probs[: len(logits)], expected, atol=1e-5, rtol=1e-4)
    assert expected.amax(-1).min() > 0.05, "a flat distribution would not show a difference"
    assert proposal.confidence is not None
    confidence = torch.softmax(torch.stack(logits), dim=-1).amax(-1).tolist()
    assert proposal.confidence[: len(logits)] == pytest.approx(confidence, abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"draft_vocab_size": 40},
        {"norm_before_residual": True},
        {"feature_norm": "joint", "num_layers": 2},
        {"feature_norm": "each"},
        {"feeds_back_normed": True},
        {"sliding_window": 5},
    ],
    ids=str,
)
def test_a_walk_equals_speculators(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_LOADS_DATA_WITH, "hs_connectors"):
        if name.partition(".")[0] not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is None:
            monkeypatch.setitem(sys.modules, name, MagicMock())
    theirs = _import("speculators", "speculators.models.eagle3.core")
    spec = TinyEagle3(packaging="speculators", has_own_tables=True, **options)
    folder = write_tiny_eagle3(tmp_path, TARGET.info, spec)
    drafter = Eagle3Drafter.load(folder, TARGET, with_confidence=True)
    proposal = _propose(drafter)
    config = json.loads((folder / "config.json").read_text())
    config["speculators_config"]["verifier"] = {"name_or_path": None, "architectures": []}
    config["speculators_config"]["default_proposal_method"] = "greedy"
    theirs.Eagle3SpeculatorConfig.model_rebuild(force=True, _types_namespace={"torch": torch})
    parsed = theirs.Eagle3SpeculatorConfig(**config)
    parsed.transformer_layer_config._attn_implementation = "eager"
    model = theirs.Eagle3DraftModel(parsed).eval()
    missing, surplus = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not surplus
    assert all(name.startswith("verifier_") or name in ("d2t", "t2d") for name in missing)
    logits: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0, len(FEATURES) - 1]))
    ids, features = _text_of(proposal)
    with torch.no_grad():
        model(features, ids, torch.zeros_like(ids), ttt_steps=NUM_STEPS)
    # In training the window does not move with the walk, as it does in serving: only the first slot is the same.
    _assert_same(drafter, proposal, logits[:1] if spec.sliding_window else logits)


@pytest.mark.parametrize("reduced", [None, 40])
def test_a_walk_equals_specforge(reduced: int | None, tmp_path: Path) -> None:
    """The official layout: `midlayer.*`, no norms on queries and keys."""
    theirs = _import("specforge", "specforge.modeling.draft.llama3_eagle")
    spec = TinyEagle3(packaging="official", has_own_tables=True, draft_vocab_size=reduced)
    folder = write_tiny_eagle3(tmp_path, TARGET.info, spec, pretraining_tp=1, pad_token_id=0)
    drafter = Eagle3Drafter.load(folder, TARGET, max_draft_tokens=NUM_STEPS, with_confidence=True)
    proposal = _propose(drafter)
    model = theirs.LlamaForCausalLMEagle3(theirs.LlamaConfig(**json.loads((folder / "config.json").read_text()))).eval()
    missing, surplus = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not surplus
    assert set(missing) <= {"d2t", "t2d"}
    ids, features = _text_of(proposal)
    length = ids.shape[1]
    logits: list[Tensor] = []
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        hidden = model.project_hidden_states(features)
        mask = theirs.prepare_decoder_attention_mask(torch.ones(1, length), (1, length), hidden, 0)
        cache: list[list[Tensor]] = [[], []]
        for step in range(NUM_STEPS):
            hidden = model.backbone(
                input_embeds=model.embed_input_ids(F.pad(ids[:, step:], (0, step))),
                hidden_states=hidden,
                cache_hidden=cache,
                attention_mask=mask,
                position_ids=torch.arange(length)[None],
            )
            logits.append(model.compute_logits(hidden)[0, len(FEATURES) - 1])
    _assert_same(drafter, proposal, logits)
