"""A data folder fills up, goes on where it stopped, and refuses what does not belong in it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blockdraft.engine import Engine
from blockdraft.errors import ConfigError, DataError
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.conversations import CONVERSATIONS, HELD_OUT, DataManifest, read_conversations, tokenize
from blockdraft.train.generate.dialogue import Answer, Dialogue, GenerationSettings
from blockdraft.train.generate.make import DataMaker, DataPlan
from blockdraft.train.generate.own import OwnRuntime
from blockdraft.train.generate.prompts import Prompt

SETTINGS = GenerationSettings(max_tokens=12, temperatures=((0.0, 0.5), (0.8, 0.5)), seed=3, question_max_tokens=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_tiny_gguf(tmp_path_factory.mktemp("make") / "tiny.gguf", quant="F32")
    return load_model(str(path), dtype="float32")


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"id": f"p/{number}", "turns": [f"hello {number}"] * (1 + number % 2)} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def maker(folder: Path, model: LoadedModel, plan: DataPlan, settings: GenerationSettings = SETTINGS) -> DataMaker:
    return DataMaker(folder, plan, settings, model.tokenizer, target="tiny", origin={"runtime": "blockdraft"})


def runtime(model: LoadedModel, batch_size: int = 8) -> OwnRuntime:
    return OwnRuntime(model.target, model.tokenizer, batch_size=batch_size, notify=pytest.fail)


class KilledError(BaseException):
    """Stands for whatever ends a process."""


class Dying:
    """A runtime that ends with the process after some answers."""

    def __init__(self, inner: OwnRuntime, after: int) -> None:
        self.inner, self.after = inner, after

    def run(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        for number, dialogue in enumerate(self.inner.run(dialogues)):
            if number == self.after:
                raise KilledError
            yield dialogue


def rows(folder: Path) -> dict[str, object]:
    return {conversation.id: conversation for conversation in read_conversations(folder)}


def test_every_prompt_is_answered_as_the_engine_answers(tmp_path: Path, model: LoadedModel, prompt_file: Path) -> None:
    outcome = maker(tmp_path, model, DataPlan(prompt_files=(prompt_file,))).run(runtime(model))
    made = rows(tmp_path)
    assert set(made) == {f"p/{number}" for number in range(20)}
    assert outcome.manifest == DataManifest.read(tmp_path)
    assert outcome.manifest.num_conversations == 20
    assert outcome.manifest.num_completion_tokens == sum(row.num_completion_tokens for row in made.values())
    assert {row.temperature for row in made.values()} == {0.0, 0.8}
    greedy = [row for row in made.values() if row.temperature == 0 and len(row.messages) == 2]
    assert greedy
    for row in greedy:
        answer = Engine(model.target, model.tokenizer).generate(row.messages[0]["content"], max_tokens=12)
        text = tokenize(row, model.tokenizer)
        assert tuple(text.token_ids) == answer.prompt_ids + answer.token_ids
        assert row.num_completion_tokens == sum(text.supervised) == len(answer.tokens)


def test_the_same_seed_gives_the_same_answers_and_another_one_others(
    tmp_path: Path, model: LoadedModel, prompt_file: Path
) -> None:
    plan = DataPlan(prompt_files=(prompt_file,))
    maker(tmp_path / "a", model, plan).run(runtime(model))
    maker(tmp_path / "b", model, plan).run(runtime(model, batch_size=3))
    maker(tmp_path / "c", model, plan, replace(SETTINGS, seed=4)).run(runtime(model))
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert rows(tmp_path / "a") != rows(tmp_path / "c")


def test_a_killed_run_goes_on_and_ends_like_one_that_was_not(
    tmp_path: Path, model: LoadedModel, prompt_file: Path
) -> None:
    plan = DataPlan(prompt_files=(prompt_file,), held_out=0.2)
    maker(tmp_path / "whole", model, plan).run(runtime(model))
    with pytest.raises(KilledError):
        maker(tmp_path / "killed", model, plan).run(Dying(runtime(model), after=7))
    with (tmp_path / "killed" / CONVERSATIONS).open("a") as file:
        file.write('{"id": "p/1')  # the row that a kill tears
    again = maker(tmp_path / "killed", model, plan)
    assert again.num_pending == 13
    outcome = again.run(runtime(model))
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert outcome.manifest == DataManifest.read(tmp_path / "whole")
    assert maker(tmp_path / "killed", model, plan).num_pending == 0


def test_what_is_held_out_stands_apart(tmp_path: Path, model: LoadedModel, prompt_file: Path) -> None:
    outcome = maker(tmp_path, model, DataPlan(prompt_files=(prompt_file,), held_out=0.3)).run(runtime(model))
    held_out = {conversation.id for conversation in read_conversations(tmp_path, HELD_OUT)}
    assert held_out
    assert held_out.isdisjoint(rows(tmp_path))
    assert (len(rows(tmp_path)), len(held_out)) == (
        outcome.manifest.num_conversations,
        outcome.manifest.num_held_out,
    )


def test_the_target_writes_its_own_questions(tmp_path: Path, model: LoadedModel) -> None:
    outcome = maker(tmp_path, model, DataPlan(num_self_written=30)).run(runtime(model))
    made = rows(tmp_path)
    assert len(made) + sum(outcome.num_discarded.values()) == 30
    assert made
    assert all([message["role"] for message in row.messages] == ["user", "assistant"] for row in made.values())
    assert len({row.messages[0]["content"] for row in made.values()}) == len(made)


def test_imported_answers_are_kept_and_not_asked_again(tmp_path: Path, model: LoadedModel, prompt_file: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"id": "p/3", "prompt": "hello 3", "answer": "the world"}) + "\n")
    plan = DataPlan(prompt_files=(prompt_file,), answer_files=(answers,), limit=4)
    made = maker(tmp_path / "data", model, plan)
    assert made.num_pending == 4
    outcome = made.run(runtime(model))
    assert set(rows(tmp_path / "data")) == {"p/0", "p/1", "p/2", "p/3", "p/4"}
    assert rows(tmp_path / "data")["p/3"].messages[-1]["content"] == "the world"
    assert outcome.manifest.method == "import+prompts"
    assert maker(tmp_path / "data", model, plan).num_pending == 0


def test_excluded_prompts_are_not_asked(tmp_path: Path, model: LoadedModel, prompt_file: Path) -> None:
    plan = DataPlan(prompt_files=(prompt_file,), exclude=(prompt_file,))
    assert maker(tmp_path, model, plan).num_pending == 0


def test_a_folder_made_with_other_settings_or_another_tokenizer_is_refused(
    tmp_path: Path, model: LoadedModel, prompt_file: Path
) -> None:
    plan = DataPlan(prompt_files=(prompt_file,), limit=1)
    maker(tmp_path, model, plan).run(runtime(model))
    with pytest.raises(DataError, match=r"made with top_k 50, not 7; choose another folder"):
        maker(tmp_path, model, plan, replace(SETTINGS, top_k=7))
    replace(DataManifest.read(tmp_path), tokenizer_sha256="beef").write(tmp_path)
    with pytest.raises(DataError, match="another tokenizer"):
        maker(tmp_path, model, plan)


def test_a_prompt_that_does_not_fit_the_context_is_counted(tmp_path: Path, model: LoadedModel) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 600}) + "\n" + json.dumps({"prompt": "hello"}) + "\n")
    outcome = maker(tmp_path / "data", model, DataPlan(prompt_files=(path,))).run(runtime(model))
    assert outcome.num_discarded == {"prompt and longest answer exceed the target's context": 1}
    assert len(rows(tmp_path / "data")) == 1


def test_two_prompts_with_one_id_are_refused(tmp_path: Path, model: LoadedModel) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text('{"id": "a", "prompt": "one"}\n{"id": "a", "prompt": "two"}\n')
    with pytest.raises(DataError, match="two different prompts have the id 'a'"):
        maker(tmp_path / "data", model, DataPlan(prompt_files=(path,)))


def test_a_full_disk_ends_the_run_and_keeps_what_is_finished(
    tmp_path: Path, model: LoadedModel, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockdraft.train.generate import make

    class FullAfterThree(make.ConversationWriter):
        num_rows = 0

        def append(self, conversations: object) -> None:
            FullAfterThree.num_rows += 1
            if FullAfterThree.num_rows > 3:
                self._file.close()
                self._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
                self._file.truncate = lambda _end: None  # type: ignore[method-assign]
            super().append(conversations)

    monkeypatch.setattr(make, "ConversationWriter", FullAfterThree)
    with pytest.raises(DataError, match="No space left on device; the conversations before are kept"):
        maker(tmp_path, model, DataPlan(prompt_files=(prompt_file,))).run(runtime(model))
    assert len(rows(tmp_path)) == DataManifest.read(tmp_path).num_conversations == 3


class TestSettings:
    def test_temperatures_are_dealt_out_by_their_shares(self) -> None:
        settings = GenerationSettings(temperatures=((0.0, 3), (0.7, 1)))
        dealt = [settings.temperature_of(f"train/{number}") for number in range(2000)]
        assert 0.70 < dealt.count(0.0) / len(dealt) < 0.80
        assert dealt == [settings.temperature_of(f"train/{number}") for number in range(2000)]

    @pytest.mark.parametrize(
        "wrong", [{"temperatures": ()}, {"temperatures": ((0.0, 0.0),)}, {"max_tokens": 0}, {"top_p": 2.0}]
    )
    def test_what_makes_no_sense_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            GenerationSettings(**wrong)

    @pytest.mark.parametrize("wrong", [{}, {"num_self_written": 1, "held_out": 1.0}])
    def test_a_plan_that_makes_nothing_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(DataError):
            DataPlan(**wrong)


class TestDialogue:
    def test_nothing_is_asked_after_an_answer_that_was_cut_off(self, model: LoadedModel) -> None:
        dialogue = Dialogue(Prompt(id="a", turns=("one", "two")), SETTINGS)
        dialogue.take(Answer(text="so", finish="length", num_tokens=1))
        conversation = dialogue.conversation(model.tokenizer)
        assert conversation is not None
        assert len(conversation.messages) == 2
        assert conversation.finish == "length"

    def test_tokens_are_stored_where_the_text_would_give_others(self, model: LoadedModel) -> None:
        odd = tuple(model.tokenizer.encode("hel") + model.tokenizer.encode("lo"))
        for ids, stored in ((odd, (odd,)), (tuple(model.tokenizer.encode("hello")), None)):
            dialogue = Dialogue(Prompt(id="a", turns=("one",)), SETTINGS)
            dialogue.take(Answer(text="hello", finish="stop", num_tokens=len(ids) + 1, token_ids=ids))
            conversation = dialogue.conversation(model.tokenizer)
            assert conversation is not None
            assert conversation.answer_ids == stored

    def test_an_empty_answer_comes_to_nothing(self, model: LoadedModel) -> None:
        dialogue = Dialogue(Prompt(id="a", turns=("one",)), SETTINGS)
        dialogue.take(Answer(text="", finish="stop", num_tokens=1))
        assert dialogue.is_finished
        assert dialogue.conversation(model.tokenizer) is None
