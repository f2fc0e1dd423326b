"""A tiny target, conversations that it wrote, and recipes that train on them in a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained import ANSWER_TOKENS, NUM_CONVERSATIONS

from blockdraft.engine import Engine
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.conversations import CONVERSATIONS, Conversation, ConversationWriter, DataManifest
from blockdraft.train.features import FeatureFolder
from blockdraft.train.recipe import DataSection, Recipe, parse_recipe
from blockdraft.train.texts import prepare_features


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("target") / "tiny.gguf", "qwen3", "F32", num_hidden_layers=4)


@pytest.fixture(scope="session")
def tiny_loaded(tiny_model_path: Path) -> LoadedModel:
    return load_model(str(tiny_model_path), dtype="float32")


@pytest.fixture(scope="session")
def data_folder(tiny_loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with the target's own answers."""
    folder = tmp_path_factory.mktemp("data")
    questions = [f"question {number}" for number in range(NUM_CONVERSATIONS)]
    engine = Engine(tiny_loaded.target, tiny_loaded.tokenizer)
    answers = engine.generate_batch(questions, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    rows = [
        Conversation(
            id=question,
            messages=({"role": "user", "content": question}, {"role": "assistant", "content": answer.text}),
            finish="length",
            num_completion_tokens=len(answer.tokens),
            source="a test",
            answer_ids=(answer.token_ids,),
        )
        for question, answer in zip(questions, answers, strict=True)
    ]
    with ConversationWriter(folder / CONVERSATIONS) as writer:
        writer.append(rows)
    manifest = DataManifest(
        target=tiny_loaded.reference,
        tokenizer_sha256=tiny_loaded.tokenizer.fingerprint,
        chat_template_sha256=tiny_loaded.tokenizer.chat_template_sha256,
        thinking=None,
        method="prompts",
        prompt_files=(),
        generation={"temperature": 0},
        num_conversations=len(rows),
        num_held_out=0,
        num_completion_tokens=sum(row.num_completion_tokens for row in rows),
        blockdraft_version="0",
    )
    manifest.write(folder)
    prompts = [{"id": str(number), "category": "chat", "turns": [f"held out {number}"]} for number in range(2)]
    (folder / "eval.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    return folder


@pytest.fixture
def make_recipe(tiny_model_path: Path, data_folder: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """Return a function that makes a recipe; keyword arguments are sections with keys to change."""

    def make_recipe(**sections: dict[str, Any]) -> Recipe:
        data: dict[str, dict[str, Any]] = {
            "target": {"model": str(tiny_model_path), "dtype": "float32"},
            "data": {
                "folders": [str(data_folder)],
                "features": str(data_folder / "features"),
                "num_candidates": 8,
                "held_out": 0.1,
                "eval_prompts": [str(data_folder / "eval.jsonl")],
                "num_eval_prompts": 2,
                "eval_max_tokens": 8,
            },
            "drafter": {
                "num_layers": 1,
                "block_size": 4,
                "num_target_features": 2,
                "markov_rank": 8,
                "mask_token_id": 1,
            },
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 2},
            "run": {
                "out": str(tmp_path / "run"),
                "max_steps": 8,
                "blocks_per_batch": 32,
                "anchors_per_text": 8,
                "compute_dtype": "float32",
                "log_every": 1,
                "checkpoint_every": 3,
                "eval_every": 100,
                "tensorboard": False,
            },
        }
        for name, changes in sections.items():
            data.setdefault(name, {}).update(changes)
        return parse_recipe(data)

    return make_recipe


@pytest.fixture(scope="session")
def feature_folder(
    tiny_loaded: LoadedModel, data_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> FeatureFolder:
    """Return the features of the tiny data folder."""
    section = DataSection(folders=(str(data_folder),), num_candidates=4)
    return prepare_features(section, tiny_loaded, (0, 2), tmp_path_factory.mktemp("features"))
