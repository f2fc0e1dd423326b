"""Our DSpark drafter against three references: the formulas step by step, SpecForge's model, speculators' heads.

The packages are not dependencies. Install them without theirs, or point BLOCKDRAFT_REFERENCE_WHEELS to a
folder with their wheels; the tests that need them are skipped otherwise.
"""

import importlib
import importlib.util
import os
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from blockdraft.core.random import Draw, PositionalRandom
from blockdraft.core.sampling import SamplingParams, sample_rows, shape_probs
from blockdraft.drafters.base import Ask, Observation, Proposal
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=5, num_hidden_layers=4)
TOKENS = list(range(20, 31))
FEATURES = torch.randn(len(TOKENS) - 1, 2 * TARGET.info.hidden_size, generator=torch.Generator().manual_seed(3))
HEADS = ("vanilla", "gated", "rnn")


def _wheel(distribution: str) -> Path | None:
    folder = os.environ.get("BLOCKDRAFT_REFERENCE_WHEELS")
    return next(iter(sorted(Path(folder).glob(f"{distribution}-*.whl"))), None) if folder else None


def _import(distribution: str, module: str) -> ModuleType:
    """Import a reference module, from an installation or from its wheel."""
    if importlib.util.find_spec(distribution) is None:
        wheel = _wheel(distribution)
        if wheel is None:
            pytest.skip(f"{distribution} is neither installed nor in BLOCKDRAFT_REFERENCE_WHEELS")
        sys.path.append(str(wheel))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} cannot be imported here: {error}")


def _single_file(distribution: str, member: str) -> ModuleType:
    """Execute one self-contained file of a wheel, without the package around it."""
    wheel = _wheel(distribution)
    if wheel is None:
        pytest.skip(f"no {distribution} wheel in BLOCKDRAFT_REFERENCE_WHEELS")
    module = ModuleType(Path(member).stem)
    exec(compile(zipfile.ZipFile(wheel).read(member), member, "exec"), module.__dict__)
    return module


def _propose(drafter: DSparkDrafter, sampling: SamplingParams, count: int = 4) -> Proposal:
    state = drafter.begin(TOKENS)
    drafter.observe(state, Observation(committed_ids=[TOKENS[-1]], target_hidden=FEATURES))
    ask = Ask(state=state, token_ids=TOKENS, num_draft_tokens=count, sampling=sampling, random=PositionalRandom(9))
    return drafter.propose([ask])[0]


def _block_hidden(drafter: DSparkDrafter, count: int) -> Tensor:
    """The hidden states of the rows that predict; the network itself is checked by the other parity tests."""
    state = drafter.begin(TOKENS)
    with torch.inference_mode():
        drafter.runner.network.extend_context([state.cache], [FEATURES])
        ask = Ask(
            state=state,
            token_ids=TOKENS,
            num_draft_tokens=count,
            sampling=SamplingParams(),
            random=PositionalRandom(9),
        )
        return drafter._run_block([ask], [count])[0].clone()


def _walk_by_the_formulas(
    tensors: dict[str, Tensor], kind: str, hidden: Tensor, head: Tensor, sampling: SamplingParams
) -> tuple[list[int], list[Tensor], list[float]]:
    """One token after another, in the letters of the paper; no batching, no shared code but the sampler."""
    w1, w2 = tensors["markov_head.markov_w1.weight"], tensors["markov_head.markov_w2.weight"]
    to_target = tensors["d2t"] + torch.arange(len(tensors["d2t"])) if "d2t" in tensors else torch.arange(len(head))
    confidence_weight = tensors["confidence_head.proj.weight"][0]
    previous, state = TOKENS[-1], torch.zeros(w1.shape[1])
    ids, probs, confidences = [], [], []
    for slot, h in enumerate(hidden):
        e = w1[previous]
        if kind == "vanilla":
            inner = e
        elif kind == "gated":
            gate = tensors["markov_head.gate_proj.weight"] @ torch.cat([h, e]) + tensors["markov_head.gate_proj.bias"]
            inner = torch.sigmoid(gate) * e
        else:
            z = torch.cat([state, e, h])
            joint = tensors["markov_head.joint_proj.weight"] @ z + tensors["markov_head.joint_proj.bias"]
            g, c, o = joint.chunk(3)
            state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
            inner = torch.tanh(o)
        features = torch.cat([h, e])[: len(confidence_weight)]
        logit = confidence_weight @ features + tensors["confidence_head.proj.bias"][0]
        confidences.append(float(torch.sigmoid(logit)))
        q = shape_probs((head @ h + w2 @ inner)[None], sampling)
        uniform = PositionalRandom(9).uniform(len(TOKENS) + slot, Draw.DRAFT)
        previous = int(to_target[sample_rows(q, torch.tensor([uniform]))[0]])
        ids.append(previous)
        probs.append(torch.zeros(TARGET.info.vocab_size).index_copy(0, to_target, q[0]))
    return ids, probs, confidences


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("reduced", [None, 40])
@pytest.mark.parametrize("confidence", ["hidden", "hidden+markov"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_probabilities_and_confidence_follow_the_formulas(
    kind: str, reduced: int | None, confidence: Any, temperature: float, tmp_path: Path
) -> None:
    spec = TinyDrafter(
        method="dspark",
        packaging="speculators",
        block_size=5,
        markov_head_type=kind,
        draft_vocab_size=reduced,
        confidence_head=confidence,
    )
    folder = write_tiny_drafter(tmp_path, TARGET.info, spec)
    tensors = load_file(folder / "model.safetensors")
    drafter = DSparkDrafter.load(folder, TARGET, with_confidence=True)
    sampling = SamplingParams(temperature=temperature, top_k=20 if temperature else 0)
    head = tensors.get("lm_head.weight", TARGET.head_weight)
    ids, probs, confidences = _walk_by_the_formulas(tensors, kind, _block_hidden(drafter, 5), head, sampling)
    proposal = _propose(drafter, sampling, count=5)
    assert proposal.draft_ids == tuple(ids)
    assert proposal.confidence == pytest.approx(confidences, abs=1e-5)
    if temperature == 0.0:
        assert proposal.draft_probs is None
    else:
        torch.testing.assert_close(proposal.draft_probs, torch.stack(probs), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_a_block_equals_specforge(kind: str, tmp_path: Path) -> None:
    """SpecForge's whole model: network, Markov head and confidence head."""
    specforge = _import("specforge", "specforge.modeling.draft.dspark")
    spec = TinyDrafter(method="dspark", packaging="specforge", markov_head_type=kind)
    folder = write_tiny_drafter(tmp_path, TARGET.info, spec)
    theirs = specforge.DSparkDraftModel.from_pretrained(folder, attn_implementation="eager").eval()
    drafter = DSparkDrafter.load(folder, TARGET, with_confidence=True)
    proposal = _propose(drafter, SamplingParams())
    ids = torch.tensor([[TOKENS[-1], 3, 3, 3]])
    with torch.no_grad():
        hidden = theirs(
            target_hidden=FEATURES[None],
            noise_embedding=torch.nn.functional.embedding(ids, TARGET.embedding_weight),
            position_ids=torch.arange(len(TOKENS) + 3)[None],
        )
        torch.testing.assert_close(_block_hidden(drafter, 4), hidden[0], atol=1e-4, rtol=1e-4)
        tokens, _ = theirs.markov_head.sample_block_tokens(
            hidden @ TARGET.head_weight.T, first_prev_token_ids=ids[:, 0], hidden_states=hidden
        )
        previous = torch.cat([ids[:, :1], tokens[:, :-1]], dim=1)
        confidence = torch.sigmoid(theirs.predict_confidence(hidden, prev_token_ids=previous))
    assert proposal.draft_ids == tuple(tokens[0].tolist())
    assert proposal.confidence == pytest.approx(confidence[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_bias_with_a_reduced_vocabulary_equals_speculators(kind: str, tmp_path: Path) -> None:
    """speculators' heads, fed the tokens we sampled, give the distributions we reported."""
    heads = _single_file("speculators", "speculators/models/dspark/model_definitions.py")
    spec = TinyDrafter(method="dspark", packaging="speculators", markov_head_type=kind, draft_vocab_size=40)
    folder = write_tiny_drafter(tmp_path, TARGET.info, spec)
    tensors = load_file(folder / "model.safetensors")
    theirs = heads.MarkovHead(
        verifier_vocab_size=TARGET.info.vocab_size,
        draft_vocab_size=40,
        markov_rank=8,
        hidden_size=TARGET.info.hidden_size,
        head_type=kind,
    )
    prefix = "markov_head."
    theirs.load_state_dict({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
    drafter = DSparkDrafter.load(folder, TARGET)
    proposal = _propose(drafter, SamplingParams(temperature=1.0))
    hidden = _block_hidden(drafter, 4)
    previous = torch.tensor([[TOKENS[-1], *proposal.draft_ids[:-1]]])
    with torch.no_grad():
        bias = theirs.block_bias(prev_token_ids=previous, hidden_states=hidden[None])[0]
    expected = torch.softmax(hidden @ tensors["lm_head.weight"].T + bias, dim=-1)
    target_ids = tensors["t2d"].nonzero()[:, 0]  # the draft vocabulary is in the order of the target's ids
    assert proposal.draft_probs is not None
    torch.testing.assert_close(proposal.draft_probs[:, target_ids], expected, atol=1e-5, rtol=1e-4)
    assert set(proposal.draft_ids) <= set(target_ids.tolist())
