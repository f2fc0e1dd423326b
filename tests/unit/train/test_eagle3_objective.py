"""The unrolled walk against a slow one, and against the drafter that serves the same tensors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.drafters.eagle3_checkpoint import load_eagle3_checkpoint
from blockdraft.engine import Engine, Request
from blockdraft.errors import ConfigError
from blockdraft.models.base import Segment
from blockdraft.testing.tiny_models import tiny_target
from blockdraft.train.batches import BlockBatch, collate
from blockdraft.train.eagle3_network import init_from_last_layer
from blockdraft.train.features import TextFeatures
from blockdraft.train.objectives.base import LossConfig
from blockdraft.train.objectives.eagle3 import (
    STEP_DECAY_GAMMA,
    Eagle3Objective,
    eagle3_config_json,
    new_eagle3_config,
)
from blockdraft.train.objectives.slots import TargetTables

TARGET = tiny_target("llama", seed=3, num_hidden_layers=4)
INFO = TARGET.info
K, NUM_PROMPT = 3, 4
TABLES = TargetTables(embedding=TARGET.embedding_weight, head=TARGET.head_weight)
LOSS = LossConfig(ce=1.0, tv=0.3, slot_weights="decay", gamma=STEP_DECAY_GAMMA)
SHAPE = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 96}


def objective(loss: LossConfig = LOSS, *, reduced: bool = False, **changes: Any) -> Eagle3Objective:
    torch.manual_seed(0)
    ids = torch.arange(0, INFO.vocab_size, 2) if reduced else None
    config = new_eagle3_config(INFO, num_steps=K, draft_vocab_size=len(ids) if reduced else None, **SHAPE)  # type: ignore[arg-type]
    made = Eagle3Objective(replace(config, **changes), TABLES, loss, draft_ids=ids, compute_dtype=torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():  # loud, so that rows differ
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def answer(prompt: tuple[int, ...], max_tokens: int = 14) -> list[int]:
    request = Request(prompt_ids=prompt, max_tokens=max_tokens)
    return [*prompt, *Engine(TARGET).run([request])[0].token_ids]


def text(token_ids: list[int]) -> TextFeatures:
    """A whole text, with the probabilities of all tokens as candidates."""
    segment = Segment(token_ids=token_ids, cache=TARGET.new_cache(), num_logits=len(token_ids))
    output = TARGET.forward([segment], (1, 1, 0))
    assert output.target_hidden is not None
    probs, ids = torch.softmax(output.logits, dim=-1).sort(descending=True)
    return TextFeatures(
        token_ids=torch.tensor(token_ids),
        supervised=torch.arange(len(token_ids)) >= NUM_PROMPT,
        target_hidden=output.target_hidden.clone(),
        candidate_ids=ids,
        candidate_probs=probs,
    )


@pytest.fixture(scope="module")
def texts() -> list[TextFeatures]:
    return [text(answer(prompt)) for prompt in ((5, 9, 5, 9), (1, 2, 3, 4))]


@pytest.fixture(scope="module")
def batch(texts: list[TextFeatures]) -> BlockBatch:
    return collate(texts, [np.array([4, 7, 12]), np.array([5, 6])], K)


def slow_walk(made: Eagle3Objective, one: TextFeatures, anchor: int) -> list[Tensor]:
    """Logits of each slot: one row after another, every row a token of its own sequence, no cache and no batch."""
    w = {name: tensor.float() for name, tensor in made.draft_tensors().items()}
    config = made.config
    N, G, H = config.num_heads, config.num_kv_heads, config.head_dim

    def norm(x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean() + config.rms_norm_eps) * w[name + ".weight"]

    def rotate(head: Tensor, position: int) -> Tensor:
        out = head.clone()
        for i in range(H // 2):
            angle = torch.tensor(position / config.rope.theta ** (2 * i / H))
            a, b = head[i], head[i + H // 2]
            out[i], out[i + H // 2] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return out

    def project(hidden: Tensor, token: int, position: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        normed = norm(hidden, "layers.0.hidden_norm")
        inputs = torch.cat([norm(TABLES.embedding[token], "layers.0.input_layernorm"), normed])
        q, k, v = (w[f"layers.0.self_attn.{part}_proj.weight"] @ inputs for part in "qkv")
        q, k, v = q.view(N, H), k.view(G, H), v.view(G, H)
        if config.has_qk_norm:
            q = torch.stack([norm(head, "layers.0.self_attn.q_norm") for head in q])
            k = torch.stack([norm(head, "layers.0.self_attn.k_norm") for head in k])
        q, k = (torch.stack([rotate(head, position) for head in heads]) for heads in (q, k))
        return q, k, v, normed if config.norm_before_residual else hidden

    tokens = one.token_ids.tolist()
    rows = [w["fc.weight"] @ one.target_hidden[i] for i in range(anchor)]
    cache = [project(rows[i], tokens[i + 1], i)[1:3] for i in range(anchor - 1)]
    hidden, logits = rows[-1], []
    for step in range(K):
        position = anchor - 1 + step
        q, k, v, residual = project(hidden, tokens[anchor + step] if anchor + step < len(tokens) else 0, position)
        cache.append((k, v))
        heads = []
        for index in range(N):
            own = index // (N // G)
            scores = torch.stack([q[index] @ key[own] for key, _ in cache]) / H**0.5
            heads.append(torch.softmax(scores, 0) @ torch.stack([value[own] for _, value in cache]))
        hidden = residual + w["layers.0.self_attn.o_proj.weight"] @ torch.cat(heads)
        x = norm(hidden, "layers.0.post_attention_layernorm")
        gate, up = w["layers.0.mlp.gate_proj.weight"] @ x, w["layers.0.mlp.up_proj.weight"] @ x
        hidden = hidden + w["layers.0.mlp.down_proj.weight"] @ (F.silu(gate) * up)
        normed = norm(hidden, "norm")
        logits.append(made._head.float() @ normed)
        hidden = normed if config.feeds_back_normed else hidden
    return logits


def slow_sums(made: Eagle3Objective, one: TextFeatures, anchor: int) -> tuple[float, float, list[float]]:
    """Loss, weight and acceptance of one anchor's slots, by the definitions."""
    drafted = list(range(INFO.vocab_size)) if made.draft_ids is None else made.draft_ids.tolist()
    loss = weight = 0.0
    kept = []
    for slot, logits in enumerate(slow_walk(made, one, anchor)):
        if anchor + slot + 1 >= len(one.token_ids):
            break
        p = torch.zeros(INFO.vocab_size).scatter(
            0, one.candidate_ids[anchor + slot], one.candidate_probs[anchor + slot]
        )
        p = p[drafted]
        log_q = torch.log_softmax(logits, -1)
        accepted = float(torch.minimum(p, log_q.exp()).sum())
        ce = -float((p / p.sum() * log_q).sum())
        loss += 0.8**slot * (made.loss.ce * ce + made.loss.tv * (1 - accepted))
        weight += 0.8**slot
        kept.append(accepted)
    return loss, weight, kept


@pytest.mark.parametrize(
    "changes",
    [{}, {"reduced": True}, {"has_qk_norm": True}, {"norm_before_residual": True}, {"feeds_back_normed": True}],
    ids=str,
)
def test_sums_equal_the_definitions(changes: dict[str, Any], texts: list[TextFeatures], batch: BlockBatch) -> None:
    made = objective(**changes)
    sums = made(batch)
    slow = [
        slow_sums(made, one, anchor) for one, own in zip(texts, ((4, 7, 12), (5, 6)), strict=True) for anchor in own
    ]
    assert float(sums.loss.detach()) == pytest.approx(sum(loss for loss, _, _ in slow), rel=1e-4)
    assert sums.weight == made.weight_of(batch) == pytest.approx(sum(weight for _, weight, _ in slow), rel=1e-5)
    assert sums.accepted is not None
    assert sums.reached is not None
    for slot in range(K):
        reached = [kept[slot] for _, _, kept in slow if slot < len(kept)]
        assert int(sums.reached[slot]) == len(reached)
        assert float(sums.accepted[slot]) == pytest.approx(sum(reached), rel=1e-4)


def test_checkpointing_changes_no_gradient(batch: BlockBatch) -> None:
    plain, thrifty = objective(), objective()
    thrifty.network.use_checkpointing = True
    for made in (plain, thrifty):
        made(batch).loss.backward()
    for ours, theirs in zip(plain.parameters(), thrifty.parameters(), strict=True):
        assert ours.grad is not None
        assert ours.grad.abs().sum() > 0
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("changes", [{}, {"reduced": True}, {"has_qk_norm": True, "feeds_back_normed": True}], ids=str)
def test_served_acceptance_equals_the_acceptance_computed_in_training(
    changes: dict[str, Any], texts: list[TextFeatures], batch: BlockBatch, tmp_path: Path
) -> None:
    """The tensors go through a checkpoint folder into the drafter, which walks with the text's tokens."""
    made = objective(**changes)
    config = eagle3_config_json(made.config, "org/target", ("LlamaForCausalLM",))
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in made.draft_tensors().items()}, tmp_path / "model.safetensors"
    )
    checkpoint = load_eagle3_checkpoint(tmp_path, INFO)
    assert checkpoint.config == made.config
    drafter = Eagle3Drafter(checkpoint, TARGET)
    accepted, reached = torch.zeros(K), torch.zeros(K)
    for one, anchors in zip(texts, ((4, 7, 12), (5, 6)), strict=True):
        tokens = one.token_ids.tolist()
        for anchor in anchors:
            state = drafter.begin(tokens[:anchor])
            drafter.observe(
                state, Observation(committed_ids=tokens[anchor : anchor + 1], target_hidden=one.target_hidden[:anchor])
            )
            for slot, q in enumerate(_forced_walk(drafter, state, tokens, anchor)):
                p = torch.zeros(INFO.vocab_size)
                p.scatter_(0, one.candidate_ids[anchor + slot], one.candidate_probs[anchor + slot])
                accepted[slot] += torch.minimum(p, q).sum()
                reached[slot] += 1
    sums = made(batch)
    assert sums.reached is not None
    torch.testing.assert_close(sums.accepted, accepted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums.reached.float(), reached)


def _forced_walk(drafter: Eagle3Drafter, state: Any, tokens: list[int], anchor: int) -> Tensor:
    """Propose as a sampled request does, but let the draws fall on the text's tokens; return the distributions."""
    wanted = iter(tokens[anchor + 1 : anchor + 1 + K])
    honest = drafter.choice.to_target_ids

    def forced(draft_ids: Tensor) -> Tensor:
        honest(draft_ids)
        return torch.tensor([next(wanted)])

    drafter.choice.to_target_ids = forced  # type: ignore[method-assign]
    count = min(K, len(tokens) - anchor - 1)
    ask = Ask(
        state=state,
        token_ids=tokens[: anchor + 1],
        num_draft_tokens=count,
        sampling=SamplingParams(temperature=1.0),
        random=PositionalRandom(0),
    )
    [proposal] = drafter.propose([ask])
    drafter.choice.to_target_ids = honest  # type: ignore[method-assign]
    assert proposal.draft_probs is not None
    assert len(proposal) == count
    return proposal.draft_probs


def test_every_round_of_the_engine_keeps_what_training_foretells() -> None:
    """Trained on one greedy answer for a moment; then each round of the engine accepts the run of right guesses."""
    prompt = (7, 7, 3, 11)
    tokens = answer(prompt, 24)
    one = text(tokens)
    anchors = np.arange(NUM_PROMPT, len(tokens) - 1)
    everything = collate([one], [anchors], K)
    made = objective(replace(LOSS, ce_labels="top1", tv=0.0))
    optimizer = torch.optim.Adam(made.parameters(), lr=3e-3)
    before = float(made(everything).loss.detach())
    for _ in range(12):
        optimizer.zero_grad()
        sums = made(everything)
        (sums.loss / sums.weight).backward()
        optimizer.step()
    assert float(made(everything).loss.detach()) < 0.7 * before
    with torch.no_grad():
        guesses = (made._slot_hidden(everything) @ TARGET.head_weight.T).argmax(-1)
    is_right = (guesses == everything.label_ids)[0] & everything.is_supervised[0]
    foretold = dict(zip(anchors.tolist(), is_right.cumprod(-1).sum(-1).tolist(), strict=True))
    drafter = Eagle3Drafter(made.checkpoint(INFO, made.draft_tensors()), TARGET)
    [generation] = Engine(TARGET, drafter=drafter).run([Request(prompt_ids=prompt, max_tokens=24)])
    assert [*prompt, *generation.token_ids] == tokens
    place, accepted = NUM_PROMPT, []
    for round_ in generation.rounds:
        if round_.num_drafted:
            assert round_.num_accepted == min(foretold[place], round_.num_drafted)
            accepted.append(round_.num_accepted)
        place += round_.num_emitted
    assert len(set(accepted)) > 1, "a drafter that is always or never right would show nothing"


def test_the_arithmetic_counts_the_trained_products(batch: BlockBatch) -> None:
    assert objective().flops(batch) > 0
    assert objective(reduced=True).flops(batch) < objective().flops(batch)


def test_a_start_from_the_target_is_its_last_layer_on_the_highest_tap() -> None:
    """With nothing of the other taps and of the embedding, a lone row is what the target's last layer makes of it."""
    own = TARGET.config
    sizes = {"num_heads": own.num_heads, "num_kv_heads": own.num_kv_heads, "head_dim": own.head_dim}
    config = new_eagle3_config(
        INFO, num_steps=1, intermediate_size=own.intermediate_size, target_layer_ids=(0, 2), **sizes
    )
    network = Eagle3Objective(config, TABLES, LOSS, compute_dtype=torch.float32).network
    init_from_last_layer(network, TARGET)
    D = INFO.hidden_size
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        parameters["fc"].zero_()[:, D:] = torch.eye(D)
        for part in "qkv":
            parameters[f"layers.0.self_attn.{part}_proj"][:, :D] = 0
        segment = Segment(token_ids=[7], cache=TARGET.new_cache(), num_logits=1)
        output = TARGET.forward([segment], (0, 2))
        assert output.target_hidden is not None
        nothing = torch.zeros(1, 1, 1, D)
        hidden = network(output.target_hidden[None], nothing[0], nothing, torch.zeros(1, 1, dtype=torch.long))
        torch.testing.assert_close(hidden.flatten() @ TARGET.head_weight.T, output.logits[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="leave the sizes"):
        init_from_last_layer(objective().network, TARGET)


def test_a_head_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match="trained with one layer of full attention"):
        objective(windows=(8,))
