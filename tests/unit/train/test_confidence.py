"""Confidences are collected from the real engine, fitted, saved with the drafter and used from then on."""

import json
import math

import numpy as np
import pytest

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.block_config import read_block_config
from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint, read_config_json
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine
from blockdraft.engine.workloads import Workload
from blockdraft.errors import ConfigError, DataError
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.calibration import ConfidenceData
from blockdraft.train.confidence import RecordingDrafter, calibrate, collect_confidence, save_calibration
from blockdraft.train.reliability_plot import check_plots, plot_reliability

PROMPTS = [Workload(id=str(n), category="ab"[n % 2], turns=(f"prompt {n}",)) for n in range(8)]
STATED = (0.9, 0.8, 0.7, 0.6)


def two_token_model(folder) -> LoadedModel:
    """Return a tiny model that can only say two things, so that a random drafter is often right."""
    model = load_model(str(write_tiny_gguf(folder / "tiny.gguf", quant="F32")), dtype="float32")
    head = model.target.head_weight
    direction = 50 * head[70]
    head.zero_()
    head[70], head[80] = direction, -direction
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return two_token_model(tmp_path_factory.mktemp("two_tokens"))


@pytest.fixture
def folder(model, tmp_path):
    spec = TinyDrafter(method="dspark", packaging="deepspec", block_size=3)
    return write_tiny_drafter(tmp_path / "drafter", model.target.info, spec)


def answers_of(model, max_tokens, **options):
    answers = Engine(model.target, model.tokenizer).generate_batch(
        [prompt.turns[0] for prompt in PROMPTS], max_tokens=max_tokens, **options
    )
    return {answer.prompt_ids: answer.token_ids for answer in answers}


def collect(model, max_tokens, **script) -> ConfidenceData:
    drafter = ScriptedDrafter(
        answers_of(model, max_tokens),
        vocab_size=model.target.info.vocab_size,
        confidence=STATED,
        max_draft_tokens=4,
        **script,
    )
    return collect_confidence(model.target, model.tokenizer, drafter, PROMPTS, max_tokens=max_tokens, batch=3)


def test_every_round_tells_what_was_said_and_what_was_kept(model):
    data = collect(model, 1 + 5 * 3, num_right=2)
    assert data.logits.shape == (8 * 5, 4)
    assert data.confidence((1.0,) * 4)[0] == pytest.approx(STATED)
    whole_blocks = ~np.isnan(data.logits[:, 3])
    assert whole_blocks.sum() == 8 * 4
    assert (data.kept[whole_blocks] == [1, 1, 0, 0]).all()


def test_slots_that_were_not_drafted_are_unknown(model):
    data = collect(model, 1 + 3)  # one round, in which there is room for two drafts
    assert (data.kept == [1, 1, -1, -1]).all()
    assert np.isnan(data.logits[:, 2:]).all()
    assert not np.isnan(data.logits[:, :2]).any()


def test_what_lies_behind_the_end_of_an_answer_was_not_judged():
    scripted = ScriptedDrafter(
        {(1, 2): (3, 4, 5, 6, 7)}, vocab_size=96, confidence=STATED, max_draft_tokens=4, num_drafts=4
    )
    recorder = RecordingDrafter(scripted)
    state = recorder.begin((1, 2))
    ask = Ask(
        state=state,
        token_ids=[1, 2, 3],
        num_draft_tokens=4,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )
    recorder.propose([ask])
    recorder.observe(state, Observation(committed_ids=(4, 5), num_drafted=4, num_accepted=2))  # 5 was a stop
    assert recorder.data().kept.tolist() == [[1, 1, -1, -1]]


def test_nothing_drafted_leaves_nothing_to_calibrate():
    drafter = ScriptedDrafter({}, vocab_size=96, confidence=STATED)
    with pytest.raises(DataError, match="drafted nothing"):
        RecordingDrafter(drafter).data()


def test_a_drafter_without_confidence_is_refused(model):
    drafter = ScriptedDrafter({}, vocab_size=model.target.info.vocab_size)
    with pytest.raises(ConfigError, match="gives no confidence"):
        collect_confidence(model.target, model.tokenizer, drafter, PROMPTS)


def test_a_confidence_of_one_has_a_finite_logit(model):
    drafter = ScriptedDrafter(
        answers_of(model, 8), vocab_size=model.target.info.vocab_size, confidence=(1.0, 0.0), num_drafts=2
    )
    data = collect_confidence(model.target, model.tokenizer, drafter, PROMPTS, max_tokens=8)
    assert np.isfinite(data.logits[0, :2]).all()


class TestDSpark:
    @pytest.fixture
    def calibration(self, model, folder):
        checkpoint = load_draft_checkpoint(folder, model.target.info)
        return calibrate(model.target, model.tokenizer, checkpoint, PROMPTS, max_tokens=200)

    def test_both_halves_are_used_and_progress_is_told(self, model, folder):
        told = []
        checkpoint = load_draft_checkpoint(folder, model.target.info)
        found = calibrate(
            model.target,
            model.tokenizer,
            checkpoint,
            PROMPTS,
            max_tokens=200,
            progress=lambda done, total: told.append((done, total)),
        )
        assert told[-1] == (8, 8)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert found.num_rounds_fitted > 100
        assert found.num_rounds_judged > 100
        assert len(found.temperatures) == 3
        assert any(abs(math.log(value)) > 0.1 for value in found.temperatures)

    def test_the_saved_temperatures_are_what_the_drafter_uses(self, model, folder, calibration):
        save_calibration(folder, calibration, {"target": "tiny"})
        assert read_block_config(read_config_json(folder)).confidence_temperatures == calibration.temperatures
        record = json.loads((folder / "calibration.json").read_text())
        assert record["confidence_temperatures"] == list(calibration.temperatures)
        assert record["target"] == "tiny"
        checkpoint = load_draft_checkpoint(folder, model.target.info)
        served = DSparkDrafter(checkpoint, model.target, with_confidence=True)
        data = collect_confidence(model.target, model.tokenizer, served, PROMPTS[:1], max_tokens=60)
        before = self.raw(model, folder, checkpoint)
        known = ~np.isnan(data.logits)
        scaled = before.logits / np.array(calibration.temperatures)
        assert data.logits[known] == pytest.approx(scaled[known], abs=1e-3)

    def raw(self, model, folder, checkpoint) -> ConfidenceData:
        config = json.loads((folder / "config.json").read_text())
        del config["confidence_temperatures"]
        (folder / "config.json").write_text(json.dumps(config))
        plain = DSparkDrafter(load_draft_checkpoint(folder, model.target.info), model.target, with_confidence=True)
        return collect_confidence(model.target, model.tokenizer, plain, PROMPTS[:1], max_tokens=60)

    def test_calibrating_again_starts_from_the_raw_head(self, model, folder, calibration):
        save_calibration(folder, calibration, {})
        checkpoint = load_draft_checkpoint(folder, model.target.info)
        again = calibrate(model.target, model.tokenizer, checkpoint, PROMPTS, max_tokens=200)
        assert again.temperatures == calibration.temperatures
        assert again.before == calibration.before

    def test_the_plot_is_a_picture(self, calibration, tmp_path):
        path = plot_reliability(calibration, tmp_path / "reliability.png")
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_one_prompt_of_each_category_cannot_be_split(self, model, folder):
        checkpoint = load_draft_checkpoint(folder, model.target.info)
        with pytest.raises(DataError, match="at least two of a category"):
            calibrate(model.target, model.tokenizer, checkpoint, PROMPTS[:2])


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"blockdraft\[plots\]"):
        check_plots()
