"""The reference package (PyPI `dflash` 0.1.0) loads an exported folder strictly and drafts what our engine drafts."""

from pathlib import Path

import pytest
import torch

from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint
from blockdraft.models.load import load_model
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.export import export_drafter
from blockdraft.train.export.verify import Recording, draft

reference = pytest.importorskip("dflash.model", reason="the reference needs `pip install --no-deps dflash==0.1.0`")

pytestmark = pytest.mark.engines

DRAFTERS = {
    "whole vocabulary": TinyDrafter(block_size=5),
    "sliding windows": TinyDrafter(block_size=5, sliding_window=9),
    "from the layout of speculators": TinyDrafter(packaging="speculators", block_size=5),
    "a reduced vocabulary given up": TinyDrafter(packaging="speculators", block_size=5, draft_vocab_size=60),
}


@pytest.mark.parametrize("name", DRAFTERS)
@torch.inference_mode()
def test_an_exported_folder_loads_strictly_and_drafts_the_same(name: str, tmp_path: Path) -> None:
    target = load_model(str(write_tiny_gguf(tmp_path / "target.gguf", "qwen3")), device="cpu", dtype="float32")
    spec = DRAFTERS[name]
    source = write_tiny_drafter(tmp_path / "in", target.target.info, spec)
    folder = export_drafter(
        source,
        target,
        "z-lab",
        tmp_path / "out",
        stored_type="f32",
        full_vocabulary=spec.draft_vocab_size is not None,
    ).path
    model, loading = reference.DFlashDraftModel.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert (model.block_size, list(model.target_layer_ids)) == (5, [0, 2])
    model.eval()

    checkpoint = load_draft_checkpoint(folder, target.target.info)
    # Features of noise: those of a tiny random target are too much alike to draw different drafts.
    generator = torch.Generator().manual_seed(3)
    recording = Recording(
        token_ids=tuple(torch.randint(0, target.target.info.vocab_size, (60,), generator=generator).tolist()),
        num_prompt=12,
        target_hidden=torch.randn(60, model.fc.in_features, generator=generator),
    )
    proposals = draft(checkpoint, target.target, [recording])
    assert len({proposal.draft_ids for proposal in proposals}) > 5  # they vary, so agreement means something
    cache, done = reference._make_cache(model.config), 0
    anchors = range(recording.num_prompt, len(recording.token_ids), 3)
    for anchor, proposal in zip(anchors, proposals, strict=True):
        ids = torch.tensor([[recording.token_ids[anchor]] + [model.mask_token_id] * 4])
        hidden = model(
            target_hidden=recording.target_hidden[None, done:anchor],
            noise_embedding=torch.nn.functional.embedding(ids, target.target.embedding_weight),
            position_ids=torch.arange(done, anchor + 5)[None],
            past_key_values=cache,
            use_cache=True,
        )[:, 1:]
        reference._crop_to(cache, anchor)
        logits = model.compute_logits(hidden, lambda rows: rows @ target.target.head_weight.T)[0]
        assert proposal.draft_ids == tuple(logits.argmax(-1).tolist())
        done = anchor
