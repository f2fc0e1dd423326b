"""What a training step costs, by operator, and how near it comes to the machine's matrix products.

Texts of random tokens (the content does not change the arithmetic) go through the target once, which times the
feature pass, and then through training steps of a DSpark drafter for it. The rate of the model's arithmetic is set
beside the rate of the same three products alone (forward, input gradient, weight gradient of an MLP matrix), so a
share near one would mean that nothing but products takes time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.profiler import profile

from blockdraft.models.load import LoadedModel
from blockdraft.train.batches import BatchPlan, EpochSampler
from blockdraft.train.drafter import DraftObjective, build_objective
from blockdraft.train.features import FeatureFolder, TrainingText, capture_features
from blockdraft.train.optimizer import Stepper
from blockdraft.train.plan import target_layers
from blockdraft.train.recipe import Recipe, parse_recipe
from blockdraft.train.texts import feature_manifest
from common import emit, idle_check, load, make_parser, print_table, say

NUM_OPERATORS = 12
NUM_WARMUP = 2


def random_texts(vocab_size: int, count: int) -> list[TrainingText]:
    """Return texts of 200 to 400 tokens, the last two thirds of them supervised."""
    rng = np.random.default_rng(0)
    texts = []
    for length in rng.integers(200, 400, count).tolist():
        ids = rng.integers(0, vocab_size, length).tolist()
        texts.append(TrainingText(token_ids=ids, supervised=[place * 3 >= length for place in range(length)]))
    return texts


def capture(loaded: LoadedModel, recipe: Recipe, folder: Path, count: int) -> tuple[FeatureFolder, float]:
    """Run the target over the texts; return the features and the tokens per second."""
    info = loaded.target.info
    texts = random_texts(info.vocab_size, count)
    manifest = feature_manifest(recipe.data, loaded, target_layers(recipe.drafter, info.num_layers), texts, {})
    started = time.perf_counter()
    features = capture_features(loaded.target, texts, folder, manifest)
    return features, manifest.num_tokens / (time.perf_counter() - started)


def product_rate(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """Return the GFLOP/s of a matrix product with both of its gradients, alone."""
    x, weight = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    grad = torch.randn(rows, outputs, dtype=dtype)
    seconds = sum(
        timed(product)
        for product in (
            lambda: torch.nn.functional.linear(x, weight),
            lambda: grad @ weight,
            lambda: grad.t() @ x,
        )
    )
    return 6.0 * rows * inputs * outputs / seconds / 1e9


def timed(action: Callable[[], object], repeats: int = 15) -> float:
    """Return the median seconds of an action."""
    action()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def run_steps(
    objective: DraftObjective, features: FeatureFolder, recipe: Recipe, num_steps: int
) -> tuple[list[float], list[float], dict[str, float]]:
    """Train for some steps; return GFLOP/s and blocks/s of each, and the share of each operator in one more."""
    run = recipe.run
    plan = BatchPlan(
        blocks_per_batch=run.blocks_per_batch,
        anchors_per_text=run.anchors_per_text,
        num_slots=objective.num_slots,
        seed=run.seed,
    )
    sampler = EpochSampler(features, range(len(features)), plan)
    groups = list(islice(cycle(sampler.batches(0)), num_steps + NUM_WARMUP + 1))
    stepper = Stepper(recipe.optimizer, dict(objective.named_parameters()), is_fused=True)

    def step(group: list[int]) -> tuple[float, int]:
        batch = sampler.load(0, group)
        sums = objective(batch)
        (sums.loss / sums.weight).backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), recipe.optimizer.clip)
        stepper.step(recipe.optimizer.learning_rate)
        stepper.zero_grad()
        return objective.flops(batch), batch.num_blocks

    rates, blocks = [], []
    for index, group in enumerate(groups[:-1]):
        started = time.perf_counter()
        flops, count = step(group)
        if index >= NUM_WARMUP:
            seconds = time.perf_counter() - started
            rates.append(flops / seconds / 1e9)
            blocks.append(count / seconds)
    with profile() as profiler:
        step(groups[-1])
    operators = sorted(profiler.key_averages(), key=lambda entry: -entry.self_cpu_time_total)
    whole = sum(entry.self_cpu_time_total for entry in operators)
    return rates, blocks, {entry.key: entry.self_cpu_time_total / whole for entry in operators[:NUM_OPERATORS]}


def main() -> int:
    parser = make_parser(__doc__, num_prompts=0, max_tokens=0)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=5)
    parser.add_argument("--draft-vocabulary", type=int, default=12288)
    parser.add_argument("--blocks", type=int, default=1024, help="of a batch (default: %(default)s)")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--texts", type=int, default=160, help="for the feature pass (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="timed after the warm-up (default: %(default)s)")
    args = parser.parse_args()
    idle = idle_check()
    loaded = load(args)
    recipe = parse_recipe(
        {
            "drafter": {
                "num_layers": args.layers,
                "block_size": args.block_size,
                "draft_vocab_size": args.draft_vocabulary,
            },
            "optimizer": {"name": args.optimizer},
            "run": {"blocks_per_batch": args.blocks},
        }
    )
    with tempfile.TemporaryDirectory() as scratch:
        features, capture_rate = capture(loaded, recipe, Path(scratch), args.texts)
        say(f"feature pass: {capture_rate:,.0f} tokens/s")
        objective = build_objective(recipe, loaded, features)
        rates, blocks, shares = run_steps(objective, features, recipe, args.steps)
    config = objective.config
    rows = args.blocks * args.block_size
    alone = product_rate(rows, config.hidden_size, config.intermediate_size, torch.bfloat16)
    print_table("share of a step by operator", ("operator", "share"), list(shares.items()))
    say(f"step: {median(rates):,.0f} GFLOP/s of {alone:,.0f} in products alone; {median(blocks):,.0f} blocks/s")
    emit(
        "training_step",
        args,
        idle,
        {
            "feature_pass_tokens_per_s": capture_rate,
            "step_gflops_per_s": median(rates),
            "step_gflops_per_s_range": [min(rates), max(rates)],
            "product_gflops_per_s": alone,
            "share_of_products": median(rates) / alone,
            "blocks_per_s": median(blocks),
            "operator_shares": shares,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
