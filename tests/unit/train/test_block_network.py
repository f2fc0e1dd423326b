"""The network that is trained computes what the network that serves computes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blockdraft.drafters.block_config import AnchorLayout, BlockDraftConfig, LayerAttention
from blockdraft.drafters.block_network import BlockNetwork
from blockdraft.models.layers.rope import RopeConfig
from blockdraft.train.network import BlockModel, checkpoint_name

D, H, S, B = 32, 8, 12, 4
CONFIG = BlockDraftConfig(
    kind="draft-dflash",
    layout="z-lab",
    hidden_size=D,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=H,
    rms_norm_eps=1e-5,
    activation="silu",
    rope=RopeConfig(theta=1000.0, rotary_dim=H),
    layers=(LayerAttention(causal=False),) * 2,
    vocab_size=64,
    draft_vocab_size=None,
    block_size=B,
    anchor=AnchorLayout(anchor_predicts=False, source="a test"),
    mask_token_id=63,
    target_layer_ids=(0, 1),
    num_target_layers=4,
    logit_softcap=None,
    output_multiplier=1.0,
    input_embedding_scale=1.0,
    markov_rank=0,
    markov_head_type="none",
    confidence_head="none",
)
ANCHORS = torch.tensor([[3, 5, 9], [1, 8, 11]])


def model(config: BlockDraftConfig, **options: bool) -> BlockModel:
    torch.manual_seed(0)
    made = BlockModel(config, compute_dtype=torch.float32, **options)
    with torch.no_grad():
        for parameter in made.parameters():  # loud, so that a wrong mask shows
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, S, 2 * D, generator=generator), torch.randn(2, 3, B, D, generator=generator)


@pytest.mark.parametrize(
    "attention",
    [LayerAttention(causal=False), LayerAttention(causal=True), LayerAttention(causal=True, window=5)],
    ids=["full", "causal", "sliding"],
)
def test_every_block_is_what_the_serving_network_gives_after_its_context(
    inputs: tuple[Tensor, Tensor], attention: LayerAttention
) -> None:
    features, blocks = inputs
    config = replace(CONFIG, layers=(attention, LayerAttention(causal=False)))
    trained = model(config)
    found = trained(features, blocks, ANCHORS)
    tensors = {checkpoint_name(name): value.detach() for name, value in trained.named_parameters()}
    serving = BlockNetwork(config, tensors)
    for x in range(2):
        for n in range(3):
            cache = serving.new_cache()
            anchor = int(ANCHORS[x, n])
            serving.extend_context([cache], [features[x, :anchor]])
            expected = serving.run_block(blocks[x, n], [cache], [B])
            assert torch.allclose(found[x, n], expected, atol=1e-4), (x, n)


def test_a_block_sees_nothing_of_its_anchor_or_later(inputs: tuple[Tensor, Tensor]) -> None:
    features, blocks = inputs
    trained = model(CONFIG)
    changed = features.clone()
    changed[0, 5:] = 9.0  # from the second anchor of the first text on
    before, after = trained(features, blocks, ANCHORS), trained(changed, blocks, ANCHORS)
    assert torch.equal(before[0, :2], after[0, :2])
    assert not torch.allclose(before[0, 2], after[0, 2])
    other = blocks.clone()
    other[0, 1] = 3.0
    assert torch.equal(trained(features, other, ANCHORS)[0, 0], before[0, 0])


def test_checkpointing_changes_memory_and_not_gradients(inputs: tuple[Tensor, Tensor]) -> None:
    features, blocks = inputs
    grads = []
    for option in (False, True):
        made = model(CONFIG, use_checkpointing=option)
        made(features, blocks, ANCHORS).square().sum().backward()
        grads.append({name: parameter.grad for name, parameter in made.named_parameters()})
    for name, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][name], rtol=1e-4, atol=1e-5), name
