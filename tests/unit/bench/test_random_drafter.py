import pytest
import torch

from blockdraft.bench.random_drafter import RandomDrafter, write_random_drafter
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine, Request
from blockdraft.errors import PairError
from blockdraft.testing.tiny_models import tiny_target

REQUEST = Request(prompt_ids=(5, 9, 14, 3), max_tokens=20)


@pytest.fixture(scope="module")
def target():
    return tiny_target(hidden_size=64, num_hidden_layers=6)


@pytest.mark.parametrize(("method", "block_drafts"), [("dflash", 4), ("dspark", 5)])
def test_it_drafts_whole_blocks_and_changes_nothing(tmp_path, target, method, block_drafts):
    path = write_random_drafter(tmp_path, target.info, RandomDrafter(method=method, block_size=5, markov_rank=16))
    drafter = build_drafter(SpecConfig(types=(f"draft-{method}",), draft_model=str(path)), target, None)
    assert drafter is not None
    [answer] = Engine(target, drafter=drafter).run([REQUEST])
    assert answer.token_ids == Engine(target).run([REQUEST])[0].token_ids
    assert answer.rounds[0].num_drafted == block_drafts
    assert answer.rounds[0].drafter == f"draft-{method}"


def test_the_seed_decides_the_weights(tmp_path, target):
    def weights(folder: str, seed: int) -> bytes:
        path = write_random_drafter(tmp_path / folder, target.info, RandomDrafter(seed=seed))
        return (path / "model.safetensors").read_bytes()

    assert weights("a", 1) == weights("b", 1)
    assert weights("a", 1) != weights("c", 2)


def test_a_width_that_is_not_made_of_heads_is_refused(tmp_path):
    with pytest.raises(PairError, match="width 48"):
        write_random_drafter(tmp_path, tiny_target(dtype=torch.float32).info, RandomDrafter())
