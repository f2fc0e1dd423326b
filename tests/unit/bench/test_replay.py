import pytest

from blockdraft.bench.replay import replay
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramMapK, NgramMapK4v, NgramMod, NgramSimple, SpecConfig
from blockdraft.engine import Engine, Request
from blockdraft.errors import ConfigError
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_models import tiny_target

PROMPT = (5, 9, 14, 5, 9, 14, 5, 9)

SPECS = [
    SpecConfig(types=("ngram-simple",), ngram_simple=NgramSimple(size_n=3, size_n_min=1, size_m=6, min_draft=1)),
    SpecConfig(types=("ngram-map-k",), ngram_map_k=NgramMapK(size_n=1, size_m=2)),
    SpecConfig(types=("ngram-map-k4v",), ngram_map_k4v=NgramMapK4v(size_n=1, size_m=2)),
    SpecConfig(types=("ngram-mod",), ngram_mod=NgramMod(n_match=1, n_min=1, n_max=5)),
    SpecConfig(
        types=("ngram-map-k", "ngram-mod"),
        ngram_map_k=NgramMapK(size_n=2, size_m=3),
        ngram_mod=NgramMod(n_match=1, n_min=1, n_max=5),
    ),
]


@pytest.fixture(scope="module")
def target():
    # A small vocabulary makes random answers repeat themselves.
    return tiny_target(vocab_size=20)


def build(spec: SpecConfig, target) -> Drafter:
    drafter = build_drafter(spec, target, None)
    assert drafter is not None
    return drafter


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: ",".join(spec.types))
def test_a_replay_makes_the_rounds_that_the_engine_makes(target, spec):
    request = Request(prompt_ids=PROMPT, max_tokens=80)
    [answer] = Engine(target, drafter=build(spec, target), spec=spec).run([request])
    assert answer.stats.num_drafted > 0
    assert replay(build(spec, target), PROMPT, answer.token_ids) == list(answer.rounds)


def test_an_answer_of_one_token_has_no_rounds(target):
    assert replay(build(SPECS[0], target), PROMPT, [7]) == []


def test_a_drafter_that_reads_hidden_states_cannot_be_replayed():
    drafter = ScriptedDrafter({PROMPT: [7, 8]}, vocab_size=20, target_layer_ids=(0,))
    with pytest.raises(ConfigError, match="cannot be replayed"):
        replay(drafter, PROMPT, [7, 8])
