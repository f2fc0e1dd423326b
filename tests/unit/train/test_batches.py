"""Anchors, labels and batches against loops."""

import numpy as np
import pytest
import torch

from blockdraft.train.batches import BatchPlan, EpochSampler, collate, draw_anchors, valid_anchors
from blockdraft.train.features import FeatureFolder, TextFeatures

K = 3


def text(length: int, first: int, *, gap: int | None = None) -> TextFeatures:
    supervised = torch.arange(length) >= first
    if gap is not None:
        supervised[gap] = False
    rows = torch.arange(length)
    return TextFeatures(
        token_ids=(rows * 7 + length).to(torch.int32),
        supervised=supervised,
        target_hidden=rows[:, None].repeat(1, 4).bfloat16(),
        candidate_ids=(rows[:, None] * 10 + torch.arange(2)).to(torch.int32),
        candidate_probs=torch.full((length, 2), 0.25, dtype=torch.float16),
    )


def test_a_block_may_begin_where_the_target_chose_this_token_and_the_next() -> None:
    supervised = np.array([0, 0, 1, 1, 0, 1, 1, 1], dtype=bool)
    slow = [place for place in range(7) if supervised[place] and supervised[place + 1]]
    assert valid_anchors(supervised).tolist() == slow == [2, 5, 6]


def test_anchors_are_drawn_without_replacement_and_cover_all_places_over_time() -> None:
    supervised = np.ones(20, dtype=bool)
    rng = np.random.default_rng(0)
    seen: set[int] = set()
    for _ in range(40):
        drawn = draw_anchors(supervised, 5, rng).tolist()
        assert drawn == sorted(set(drawn))
        assert len(drawn) == 5
        seen |= set(drawn)
    assert seen == set(range(19))


def test_slots_and_their_labels_are_those_of_a_loop() -> None:
    texts = [text(10, 4), text(7, 2, gap=5)]
    anchors = [np.array([4, 6, 8]), np.array([2])]
    batch = collate(texts, anchors, K)
    for x, own in enumerate(texts):
        for n in range(3):
            taught_so_far = n < len(anchors[x])
            for k in range(K):
                place = int(anchors[x][n]) + 1 + k if n < len(anchors[x]) else 0
                inside = place < len(own.token_ids)
                taught_so_far = taught_so_far and inside and bool(own.supervised[place])
                assert bool(batch.is_supervised[x, n, k]) == taught_so_far
                if taught_so_far:
                    assert batch.label_ids[x, n, k] == own.token_ids[place]
                    assert batch.previous_ids[x, n, k] == own.token_ids[place - 1]
                    assert batch.candidate_ids[x, n, k].tolist() == own.candidate_ids[place - 1].tolist()
    assert batch.num_blocks == 4


@pytest.fixture
def sampler(feature_folder: FeatureFolder) -> EpochSampler:
    plan = BatchPlan(blocks_per_batch=12, anchors_per_text=4, num_slots=K, seed=5)
    return EpochSampler(feature_folder, range(len(feature_folder)), plan)


def test_every_text_stands_in_one_batch_of_an_epoch_and_batches_are_not_too_large(sampler: EpochSampler) -> None:
    for epoch in range(3):
        groups = sampler.batches(epoch)
        assert sorted(index for group in groups for index in group) == list(range(len(sampler.texts)))
        for group in groups:
            assert len(group) == 1 or sampler.load(epoch, group).anchors.numel() <= 12


def test_the_seed_and_the_epoch_alone_decide(sampler: EpochSampler, feature_folder: FeatureFolder) -> None:
    twin = EpochSampler(feature_folder, sampler.texts, sampler.plan)
    assert sampler.batches(1) == twin.batches(1)
    assert sampler.batches(0) != sampler.batches(1)
    anchors = {epoch: sampler.load(epoch, [0, 1]).anchors for epoch in range(6)}
    assert torch.equal(anchors[0], twin.load(0, [0, 1]).anchors)
    assert any(not torch.equal(anchors[0], anchors[epoch]) for epoch in range(1, 6))  # drawn anew
