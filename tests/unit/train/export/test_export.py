"""Every layout: what is written drafts as what was given, and what cannot be said is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from blockdraft.drafters.detect import detect_kind
from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint
from blockdraft.errors import ConfigError, DataError, PairError
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.export import export_drafter

DFLASH = TinyDrafter()
DFLASH_ANCHOR = TinyDrafter(packaging="deepspec")
DSPARK = TinyDrafter(method="dspark", packaging="deepspec")
REDUCED_DFLASH = TinyDrafter(packaging="speculators", draft_vocab_size=40)
REDUCED_DSPARK = TinyDrafter(method="dspark", packaging="speculators", draft_vocab_size=40)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_tiny_gguf(tmp_path_factory.mktemp("target") / "tiny.gguf", "llama")
    return load_model(str(path), device="cpu", dtype="float32")


def write(folder: Path, target: LoadedModel, spec: TinyDrafter, **overrides: Any) -> Path:
    return write_tiny_drafter(folder, target.target.info, spec, **overrides)


CARRIED = {
    ("z-lab", "dflash"): (DFLASH, {}),
    ("z-lab", "sliding dflash"): (TinyDrafter(sliding_window=9), {}),
    ("z-lab", "causal dflash"): (TinyDrafter(is_causal=True), {}),
    ("z-lab", "scaled dflash"): (DFLASH, {"final_logit_softcapping": 20.0, "output_multiplier": 0.5}),
    (
        "z-lab",
        "yarn dflash",
    ): (DFLASH, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 30.0}}),
    ("deepspec", "dspark"): (DSPARK, {}),
    ("deepspec", "anchor-first dflash"): (DFLASH_ANCHOR, {}),
    ("deepspec", "gated dspark"): (replace(DSPARK, markov_head_type="gated"), {}),
    ("deepspec", "reduced dspark"): (REDUCED_DSPARK, {}),
    ("speculators", "dflash"): (DFLASH, {}),
    ("speculators", "dspark"): (DSPARK, {}),
    ("speculators", "rnn dspark"): (replace(DSPARK, markov_head_type="rnn", confidence_head="none"), {}),
    ("speculators", "sliding dspark"): (replace(DSPARK, sliding_window=9), {}),
    ("speculators", "reduced dflash"): (REDUCED_DFLASH, {}),
    ("speculators", "reduced dspark"): (REDUCED_DSPARK, {}),
    ("gguf", "dflash"): (DFLASH, {}),
    ("gguf", "sliding dflash"): (TinyDrafter(sliding_window=9, is_causal=False), {}),
    ("gguf", "scaled dflash"): (DFLASH, {"final_logit_softcapping": 20.0, "input_embedding_scale": 0.5}),
    ("gguf", "dspark"): (DSPARK, {}),
    ("gguf", "dspark with a narrow confidence head"): (replace(DSPARK, confidence_head="hidden"), {}),
    ("gguf", "reduced dflash"): (REDUCED_DFLASH, {}),
    ("gguf", "reduced dspark"): (REDUCED_DSPARK, {}),
}


@pytest.mark.parametrize("case", CARRIED, ids=" ".join)
def test_what_is_written_is_the_same_drafter(case: tuple[str, str], target: LoadedModel, tmp_path: Path) -> None:
    """The export verifies itself by drafts; here tensor by tensor, in float32, where nothing is rounded."""
    (layout, _), (spec, overrides) = case, CARRIED[case]
    source = write(tmp_path / "in", target, spec, **overrides)
    report = export_drafter(source, target, layout, tmp_path / "out", stored_type="f32")
    info = target.target.info
    given, found = load_draft_checkpoint(source, info), load_draft_checkpoint(report.path, info)
    assert report.comparison.is_exact
    assert report.comparison.num_tokens > 20
    assert detect_kind(report.path) == given.config.kind
    for name, tensor in given.tensors.items():
        stored = found.tensors[name]
        if name == "confidence_head.proj.weight":  # GGUF pads the narrow one
            assert not stored[:, tensor.shape[1] :].any()
            stored = stored[:, : tensor.shape[1]]
        assert torch.equal(stored, tensor), name
    told = ("layers", "block_size", "mask_token_id", "target_layer_ids", "draft_vocab_size", "logit_softcap")
    assert [getattr(found.config, name) for name in told] == [getattr(given.config, name) for name in told]
    assert found.config.anchor.anchor_predicts == given.config.anchor.anchor_predicts
    assert found.config.rope.theta == given.config.rope.theta


@pytest.mark.parametrize("layout", ["deepspec", "speculators", "gguf"])
def test_every_layout_with_a_confidence_head_carries_its_temperatures(
    layout: str, target: LoadedModel, tmp_path: Path
) -> None:
    source = write(tmp_path / "in", target, DSPARK, confidence_temperatures=[1.5, 1.25, 2.0, 0.5])
    report = export_drafter(source, target, layout, tmp_path / "out")
    assert load_draft_checkpoint(report.path, target.target.info).config.confidence_temperatures == (1.5, 1.25, 2, 0.5)


def test_an_exported_file_can_be_exported_again(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, REDUCED_DSPARK)
    first = export_drafter(source, target, "gguf", tmp_path / "gguf", stored_type="f32")
    second = export_drafter(first.path, target, "speculators", tmp_path / "folder", stored_type="f32")
    before, after = load_file(source / "model.safetensors"), load_file(second.path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_are_rounded_as_asked(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, DSPARK)
    folder = export_drafter(source, target, "deepspec", tmp_path / "bf16")
    with safe_open(folder.path / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    quantized = export_drafter(source, target, "gguf", tmp_path / "q8", stored_type="q8_0")
    kinds = {name: tensor.type.name for name, tensor in read_gguf_header(quantized.path).tensors.items()}
    assert kinds["blk.0.attn_q.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q_norm.weight"] == kinds["conf_proj.weight"] == "F32"
    assert kinds["markov_w1.weight"] == "F32"  # rows of 8 have no whole block
    assert quantized.comparison.share_equal > 0.8
    assert quantized.num_bytes < folder.num_bytes


def test_gguf_says_what_llamacpp_asks_for(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, REDUCED_DSPARK)
    header = read_gguf_header(export_drafter(source, target, "gguf", tmp_path / "out").path)
    own = read_gguf_header(target.path)
    assert header.path.name == "dspark-draft-BF16.gguf"
    assert header.architecture == "dflash"
    assert header.metadata["dflash.target_layers"] == [1, 3]
    assert header.metadata["dflash.block_size"] == 4
    assert header.metadata["dflash.sample_from_anchor"] is True
    assert header.metadata["dflash.attention.causal"] is False
    assert header.metadata["tokenizer.ggml.mask_token_id"] == 3
    tokenizer = {key: value for key, value in own.metadata.items() if key.startswith("tokenizer.")}
    assert tokenizer.items() <= header.metadata.items()
    # Target ids, not offsets.
    d2t = load_file(source / "model.safetensors")["d2t"]
    stored = header.tensors["d2t"]
    assert stored.type.name == "I64"
    raw = header.path.read_bytes()[stored.offset : stored.offset + stored.num_bytes]
    assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.int64), d2t + torch.arange(len(d2t)))


ECE = {"before": 0.081, "after": 0.012}
REFUSED = {
    "z-lab holds no heads": ("z-lab", DSPARK, {}, "no Markov or confidence head"),
    "z-lab discards the first row": ("z-lab", DFLASH_ANCHOR, {}, "first row is always discarded"),
    "z-lab has no reduced vocabulary": ("z-lab", REDUCED_DFLASH, {}, "40 of the target's 272 tokens"),
    "deepspec predicts from the first row": ("deepspec", DFLASH, {}, "first row always predicts"),
    "deepspec has no scales": ("deepspec", DSPARK, {"output_multiplier": 0.5}, "`output_multiplier`"),
    "speculators has one flag": ("speculators", TinyDrafter(is_causal=True), {}, "only if all layers slide"),
    "llama.cpp discards the first row": ("gguf", DFLASH_ANCHOR, {}, "discards the first row"),
    "llama.cpp has the plain head": ("gguf", replace(DSPARK, markov_head_type="gated"), {}, "'gated'"),
    "llama.cpp tells DSpark by its tables": (
        "gguf",
        replace(DSPARK, markov_rank=0, confidence_head="hidden"),
        {},
        "tells DSpark by the Markov tables",
    ),
    "llama.cpp has one causality": (
        "gguf",
        TinyDrafter(sliding_window=9),
        {"layer_types": ["sliding_attention", "full_attention"]},
        "one key for all",
    ),
    "unknown layout": ("gugf", DFLASH, {}, "did you mean 'gguf'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_layout_cannot_say_is_refused_and_nothing_is_left(
    case: str, target: LoadedModel, tmp_path: Path
) -> None:
    layout, spec, overrides, reason = REFUSED[case]
    source = write(tmp_path / "in", target, spec, **overrides)
    with pytest.raises(ConfigError, match=reason):
        export_drafter(source, target, layout, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_the_whole_vocabulary_can_be_asked_for(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, REDUCED_DFLASH)
    source_config = json.loads((source / "config.json").read_text())
    source_config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 3
    report = export_drafter(source, target, "z-lab", tmp_path / "out", full_vocabulary=True)
    found = load_draft_checkpoint(report.path, target.target.info)
    assert found.config.draft_vocab_size is None
    assert "lm_head.weight" not in found.tensors
    # A head of noise and the target's head choose other tokens, and the report says so.
    assert report.comparison.share_equal < 0.5
    with pytest.raises(ConfigError, match="not needed: speculators carries"):
        export_drafter(source, target, "speculators", tmp_path / "again", full_vocabulary=True)


@pytest.mark.parametrize("spec", [REDUCED_DFLASH, REDUCED_DSPARK], ids=["dflash", "dspark"])
def test_a_head_that_is_the_targets_can_be_left_to_it(spec: TinyDrafter, target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, spec)
    with pytest.raises(ConfigError, match="head is not the target's"):
        export_drafter(source, target, "gguf", tmp_path / "out", borrow_head=True)
    tensors = load_file(source / "model.safetensors")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    tensors["lm_head.weight"] = target.target.head_weight[ids].clone()
    save_file(tensors, source / "model.safetensors")
    report = export_drafter(source, target, "gguf", tmp_path / "out", borrow_head=True, stored_type="f32")
    assert report.comparison.is_exact
    assert "only blockdraft reads this file" in report.notes[0]
    assert "lm_head.weight" not in load_draft_checkpoint(report.path, target.target.info).tensors
    assert load_draft_checkpoint(report.path, target.target.info).config.borrows_head
    # Whoever exports it again gets the head back.
    again = export_drafter(report.path, target, "gguf", tmp_path / "again", stored_type="f32")
    restored = load_draft_checkpoint(again.path, target.target.info).tensors["lm_head.weight"]
    assert torch.equal(restored, tensors["lm_head.weight"])
    with pytest.raises(ConfigError, match="--borrow-head is for gguf"):
        export_drafter(source, target, "speculators", tmp_path / "other", borrow_head=True)


def test_options_that_do_not_fit_are_refused(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, DFLASH)
    with pytest.raises(ConfigError, match="stores weights as bf16, f32"):
        export_drafter(source, target, "z-lab", tmp_path / "out", stored_type="q8_0")
    with pytest.raises(ConfigError, match="only GGUF files carry a tokenizer"):
        export_drafter(source, target, "z-lab", tmp_path / "out", tokenizer_path=target.path)
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_drafter(source, target, "z-lab", source)
    folder_target = replace(target, path=tmp_path)
    with pytest.raises(ConfigError, match="--tokenizer"):
        export_drafter(source, folder_target, "gguf", tmp_path / "out")
    assert export_drafter(source, folder_target, "gguf", tmp_path / "out", tokenizer_path=target.path).path.is_file()
    other = load_model(str(write_tiny_gguf(tmp_path / "other.gguf", num_hidden_layers=5)), dtype="float32")
    with pytest.raises(PairError, match="number of target layers"):
        export_drafter(source, other, "z-lab", tmp_path / "elsewhere")


def test_the_card_says_what_is_known_and_what_is_not(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, DSPARK)
    bare = export_drafter(source, target, "gguf", tmp_path / "bare")
    card = (tmp_path / "bare" / "README.md").read_text()
    assert target.tokenizer.chat_template_sha256 in card
    for missing in ("acceptance.json", "manifest.json", "recipe.toml", "calibration.json"):
        assert f"there was no {missing}" in card
    assert f"--spec-draft-model {bare.path.name} --spec-type draft-dspark --spec-draft-n-max 4" in card

    (source / "recipe.toml").write_text("[train]\nsteps = 7\n")
    manifest = {
        "target": "tiny",
        "chat_template_sha256": "abc",
        "thinking": False,
        "prompt_files": [{"name": "p.jsonl"}],
    }
    (source / "manifest.json").write_text(json.dumps(manifest))
    report = {"temperature": 0.0, "mean_acceptance_length": 2.345, "acceptance_rate": 0.3}
    report["by_category"] = {"code": {"mean_acceptance_length": 3.21, "conditional_acceptance": [0.8, 0.75]}}
    (source / "acceptance.json").write_text(json.dumps(report))
    slots = {side: [{"conditional": {"ece": ece}, "cumulative": {"ece": ece / 2}}] for side, ece in ECE.items()}
    (source / "calibration.json").write_text(json.dumps({"num_prompts": 64, **slots}))
    export_drafter(source, target, "speculators", tmp_path / "full")
    card = (tmp_path / "full" / "README.md").read_text()
    assert "there was no" not in card
    for said in (
        "steps = 7",
        "p.jsonl",
        "| all | 2.35 |",
        "| code | 3.21 | - | 0.80 0.75 |",
        "| 1 | 0.081 | 0.012 | 0.0405 | 0.006 |",
        "| off |",
    ):
        assert said in card
    assert "**not** the one above" in card
    again = export_drafter(tmp_path / "full", target, "deepspec", tmp_path / "again").path
    assert json.loads((again / "acceptance.json").read_text()) == report


def test_a_damaged_file_for_the_card_is_named(target: LoadedModel, tmp_path: Path) -> None:
    source = write(tmp_path / "in", target, DFLASH)
    (source / "acceptance.json").write_text("{")
    with pytest.raises(DataError, match=r"acceptance\.json is not valid JSON"):
        export_drafter(source, target, "z-lab", tmp_path / "out")


def test_a_swapped_tensor_would_be_noticed(
    target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check after writing can fail."""
    from blockdraft.train.export import folders

    def save_wrong(tensors: dict[str, torch.Tensor], path: Path, **options: Any) -> None:
        first, second = (f"layers.0.self_attn.{name}_proj.weight" for name in "kv")
        save_file(tensors | {first: tensors[second], second: tensors[first]}, path, **options)

    monkeypatch.setattr(folders, "save_file", save_wrong)
    with pytest.raises(RuntimeError, match="does not draft as"):
        export_drafter(write(tmp_path / "in", target, DFLASH), target, "z-lab", tmp_path / "out")
    assert not (tmp_path / "out").exists()
