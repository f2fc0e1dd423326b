"""What is asked: conversations by category, with a prefix of some depth, so many at once.

The package's own set is that of `engine.workloads` and, for the categories it lacks (`rag`, `tools`), the prompts
beside this module. In `tools` the calls are text and their results are fixed, so that no engine's parser takes part.

Also read is any JSON Lines file with, in each line, `turns` (user messages) or `messages` (those of the user are sent),
`category`, and `id` or `question_id`; that is the layout of SPEED-Bench (nvidia/SPEED-Bench), Spec-Bench, MT-Bench.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import count, islice
from pathlib import Path
from typing import Any

from blockdraft.engine.workloads import Workload, read_workloads
from blockdraft.errors import ConfigError, nearest_name

_MORE = "prompts.jsonl"
_LEFT_OUT = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench has in the place of prompts that must be fetched from elsewhere."""

WORDS_TO_CALIBRATE = 400
_COPY = " copy "

_PLACES = (
    "Elmstead Brackwell Thornby Aldmoor Cresswick Dunmere Farleigh Harrow Ings Kestrel Lowick Marden Norbeck Oxley"
)
_GOODS = "barley copper felt glass hinges lamps linen paper pitch rope salt slate spindles tiles timber twine wax wool"
_PEOPLE = "Abara Benning Castell Dahl Eklund Farrow Grieve Hallam Ishida Jansen Kovac Lindner Moreau Novak Osei Petrov"
_EVENTS = "arrived late|was weighed twice|went to the upper store|was returned|was sold on|was left in the yard|got wet"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Conditions under which speeds can be compared."""

    category: str
    depth: int = 0
    """Tokens of filler in front of the first message, about."""
    concurrency: int = 1
    """Conversations in flight; the next one starts when one is done."""

    def __str__(self) -> str:
        return f"{self.category}, depth {self.depth}, {self.concurrency} at once"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_prompts(paths: Sequence[Path] = ()) -> list[Workload]:
    """Read prompt files; the package's own set if there is none.

    Raises:
        ConfigError: a file cannot be read, or a line is not a prompt.
    """
    if not paths:
        more = resources.files(__package__).joinpath(_MORE)
        return [*read_workloads(), *_parse_lines(more.read_text(encoding="utf-8"), _MORE)]
    return [workload for path in paths for workload in _parse_lines(_text_of(path), str(path))]


def choose(workloads: Sequence[Workload], categories: Sequence[str], num_each: int) -> dict[str, list[Workload]]:
    """Return the first `num_each` prompts of every category that was asked for; of all if none was.

    Raises:
        ConfigError: there is no such category.
    """
    found: dict[str, list[Workload]] = {}
    for workload in workloads:
        found.setdefault(workload.category, []).append(workload)
    for name in categories:
        if name not in found:
            raise ConfigError(f"there are no prompts of category {name!r}{nearest_name(name, found)}; {_list(found)}")
    return {name: found[name][:num_each] for name in (dict.fromkeys(categories) or found)}


def words_of(depth: int, concurrency: int) -> str:
    """Return a condition in words."""
    return f"{f'depth {depth:,}' if depth else 'no prefix'}, {concurrency} at once"


def fill_places(workloads: Sequence[Workload], concurrency: int) -> list[Workload]:
    """Return the conversations, and copies of them if there are fewer than can be in flight."""
    rounds = ((number, one) for number in count(1) for one in workloads)
    missing = max(concurrency - len(workloads), 0) if workloads else 0
    return [*workloads, *(replace(one, id=f"{one.id}{_COPY}{number}") for number, one in islice(rounds, missing))]


def prompt_of(identity: str) -> str:
    """Return the id of the prompt that a conversation of `fill_places` asks."""
    return identity.partition(_COPY)[0]


def with_prefix(workload: Workload, num_words: int, repeat: int, seed: int, *, marked: bool = True) -> Workload:
    """Return the conversation with filler and a mark in front of its first message.

    The mark makes each repeat a prompt that a prefix cache does not know yet; it is the same on both sides.
    """
    parts = []
    if marked:
        digest = hashlib.sha256(f"{seed}/{workload.id}/{repeat}".encode()).hexdigest()[:8]
        parts.append(f"(Reference {digest}; it has no meaning.)")
    if num_words:
        notes = filler(num_words, f"{seed}/{workload.id}/{repeat}")
        parts.append(f"These notes have nothing to do with the question that follows them.\n\n{notes}")
    first, *others = workload.turns
    return replace(workload, turns=("\n\n".join([*parts, first]), *others))


def filler(num_words: int, seed: str) -> str:
    """Return `num_words` words of made-up entries of a warehouse's book; the same seed gives the same words."""
    draw = random.Random(seed)
    words: list[str] = []
    while len(words) < num_words:
        entry = (
            f"On day {draw.randint(1, 365)} {draw.choice(_PEOPLE.split())} of {draw.choice(_PLACES.split())} noted "
            f"that {draw.randint(2, 990)} units of {draw.choice(_GOODS.split())} {draw.choice(_EVENTS.split('|'))}."
        )
        words += entry.split()
    return " ".join(words[:num_words])


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read ({error}); give a JSON Lines file") from error


def _parse_lines(text: str, name: str) -> list[Workload]:
    workloads = [
        _parse(line, f"{name}, line {number}", number)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not workloads:
        raise ConfigError(f"the prompt file {name} holds no prompts")
    return workloads


def _parse(line: str, where: str, number: int) -> Workload:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: that is not JSON ({error})") from error
    turns = _turns(entry) if isinstance(entry, dict) else None
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ConfigError(
            f"{where}: a prompt is an object with `turns`, a list of user messages, or `messages` with role and content"
        )
    if any(turn.startswith(_LEFT_OUT) for turn in turns):
        raise ConfigError(
            f"{where}: SPEED-Bench leaves this prompt out; let its own script (examples/specdec_bench of "
            "NVIDIA/Model-Optimizer) prepare the data first"
        )
    identity = entry.get("id", entry.get("question_id", number))
    return Workload(id=str(identity), category=str(entry.get("category", "all")), turns=tuple(turns))


def _turns(entry: dict[str, Any]) -> list[Any] | None:
    if isinstance(turns := entry.get("turns"), list):
        return turns
    messages = entry.get("messages")
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return [message.get("content") for message in messages if message.get("role") == "user"]
    return None


def _list(found: dict[str, list[Workload]]) -> str:
    return f"there are {', '.join(found)}"
