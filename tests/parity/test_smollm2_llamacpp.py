"""Greedy answers of the default model: our engine in float32 against llama.cpp.

llama.cpp's Q4_1 kernels also round the activations to 8 bit, so its logits differ from those of the stored
weights by tenths of a nat. Two comparisons therefore: the shipped file (a first difference may have a gap of up
to 0.5 nat), and the same weights written out in float32, which takes that rounding away (near-ties only).
Run with `-s` to see every first difference.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from blockdraft.bench.identity import NEAR_TIE_GAP, Difference, first_difference
from blockdraft.engine import Engine
from blockdraft.engine.workloads import pick, read_workloads
from blockdraft.models.load import load_target
from blockdraft.models.references import DEFAULT_MODEL, resolve
from blockdraft.models.tokenizer import load_tokenizer

pytest.importorskip("xllamacpp")

from llamacpp_server import LlamaCpp

pytestmark = [pytest.mark.slow, pytest.mark.network]

NUM_PROMPTS = 20
MAX_TOKENS = 48
MAX_GAP = 0.5
"""A larger gap (nat) at the first difference is a failure, for whatever reason it arises."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What llama.cpp said, and how likely it found its best tokens."""

    token_ids: list[int]
    top_logprobs: list[dict[int, float]]

    def gap(self, difference: Difference) -> float | None:
        """How far apart the two tokens are in its own eyes; None if ours is not among its best ten."""
        row = self.top_logprobs[difference.position]
        if difference.plain_id not in row or difference.other_id not in row:
            return None
        return row[difference.other_id] - row[difference.plain_id]


@pytest.fixture(scope="module")
def model_path() -> Path:
    return resolve(DEFAULT_MODEL).path


@pytest.fixture(scope="module")
def engine(model_path):
    return Engine(load_target(model_path, dtype="float32"), load_tokenizer(model_path))


@pytest.fixture(scope="module")
def ours(engine):
    return {
        workload.id: engine.generate([{"role": "user", "content": workload.turns[0]}], max_tokens=MAX_TOKENS)
        for workload in pick(read_workloads(), NUM_PROMPTS)
    }


@pytest.fixture(scope="module")
def float32_path(model_path, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("float32") / "model.gguf"
    write_float32(model_path, path)
    return path


def write_float32(source: Path, path: Path) -> None:
    """Copy a GGUF file with every tensor dequantised."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    written_by_writer = {"general.architecture", "general.file_type", "general.quantization_version"}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in written_by_writer:
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ask(server: LlamaCpp, prompt_ids, eos_ids) -> Answer:
    reply = server.post(
        "/completion",
        prompt=list(prompt_ids),
        n_predict=MAX_TOKENS,
        temperature=0,
        n_probs=10,
        return_tokens=True,
        cache_prompt=False,
    )
    token_ids = reply["tokens"]
    rows = [
        {token["id"]: token["logprob"] for token in entry["top_logprobs"]}
        for entry in reply["completion_probabilities"]
    ]
    if reply["stop_type"] == "eos" and token_ids[-1] not in eos_ids:
        # The end token is not in its reply; ours counts it.
        best = max(rows[len(token_ids)], key=rows[len(token_ids)].get) if len(rows) > len(token_ids) else None
        token_ids = [*token_ids, best if best in eos_ids else min(eos_ids)]
    return Answer(token_ids=token_ids, top_logprobs=rows)


def first_differences(engine, ours, server) -> dict[str, Difference]:
    found = {}
    for name, mine in ours.items():
        theirs = ask(server, mine.prompt_ids, engine.tokenizer.eos_ids)
        difference = first_difference(engine.target, mine.prompt_ids, mine.token_ids, theirs.token_ids)
        if difference is None:
            continue
        found[name] = difference
        print(
            f"{name}: token {difference.position} of {len(mine.tokens)}, ours {difference.plain_id}, "
            f"llama.cpp {difference.other_id}, gap {difference.gap} in our model, {theirs.gap(difference)} in llama.cpp"
        )
    print(f"{len(ours) - len(found)} of {len(ours)} answers are equal")
    return found


def beyond(differences: dict[str, Difference], limit: float) -> dict[str, Difference]:
    return {name: found for name, found in differences.items() if found.gap is None or found.gap > limit}


def test_the_shipped_file_differs_from_llamacpp_only_where_its_rounding_explains_it(engine, ours, model_path):
    found = first_differences(engine, ours, LlamaCpp(model_path, context_length=1024))
    assert not beyond(found, MAX_GAP)


def test_the_same_weights_in_float32_differ_from_llamacpp_only_at_near_ties(engine, ours, float32_path):
    found = first_differences(engine, ours, LlamaCpp(float32_path, context_length=1024, is_exact=True))
    assert not beyond(found, NEAR_TIE_GAP)
    assert len(found) <= len(ours) // 10
