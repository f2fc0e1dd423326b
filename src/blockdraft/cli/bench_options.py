"""Options of `blockdraft bench`: what is asked, how often, and what is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockdraft.cli.options import gather, number_list, section
from blockdraft.cli.server_options import SERVER_OPTIONS, ServerOptions

if TYPE_CHECKING:
    from blockdraft.bench.speed.runner import Plan
    from blockdraft.bench.speed.side import AnswerSettings

_server = section("Server")
_workload = section("Workload")
_output = section("Output")


def _fields(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"that is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise click.BadParameter('a JSON object is needed, like {"top_k": 1}')
    return found


@dataclass(frozen=True, kw_only=True)
class SideOptions(ServerOptions):
    """Which servers are compared, and how they are asked."""

    baseline: str | None
    baseline_model: str | None
    baseline_fields: dict[str, Any] | None
    fields: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """What is asked, and how often."""

    prompts: tuple[Path, ...]
    category: tuple[str, ...]
    num_prompts: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    ignore_eos: bool
    depth: tuple[int, ...]
    concurrency: tuple[int, ...]
    repeats: int
    same_prompts: bool

    def plan(self) -> Plan:
        """Return what is measured.

        Raises:
            ConfigError: a prompt file cannot be read, or there is nothing to measure.
        """
        from blockdraft.bench.speed.runner import Plan  # noqa: PLC0415 - it imports numpy
        from blockdraft.bench.speed.workload import choose, read_prompts  # noqa: PLC0415

        return Plan(
            prompts=choose(read_prompts(self.prompts), self.category, self.num_prompts),
            depths=self.depth,
            concurrencies=self.concurrency,
            repeats=self.repeats,
            seed=self.seed,
            marked=not self.same_prompts,
        )

    def settings(self) -> AnswerSettings:
        """Return how prompts are answered."""
        from blockdraft.bench.speed.side import AnswerSettings  # noqa: PLC0415

        return AnswerSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written and shown."""

    out: Path | None
    report: Path | None
    compare: Path | None
    record: Path | None
    hf_id: str | None
    quantization: str | None
    hardware: Path | None
    as_json: bool


_EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW = click.Path(dir_okay=False, path_type=Path)

side_options = gather(
    SideOptions,
    "given",
    [
        _server("--baseline", metavar="URL", help="A second server, of the same model, without drafts."),
        _server("--baseline-model", metavar="NAME", help="The model to ask the baseline for."),
        _server(
            "--baseline-fields",
            metavar="JSON",
            callback=_fields,
            help="Further fields of the baseline's requests. Without --baseline it is the same server, which these "
            "fields must keep from drafting.",
        ),
        _server("--fields", metavar="JSON", callback=_fields, help="Further fields of every request."),
        *SERVER_OPTIONS,
    ],
)

workload_options = gather(
    WorkloadOptions,
    "workload",
    [
        _workload(
            "--prompts",
            metavar="FILE",
            type=_EXISTING,
            multiple=True,
            help="JSON Lines with `turns` or `messages` and `category`, SPEED-Bench's among them. Repeatable.  "
            "[default: blockdraft's own]",
        ),
        _workload("--category", metavar="NAME", multiple=True, help="Only these. Repeatable.  [default: all]"),
        _workload("--num-prompts", type=click.IntRange(min=1), default=2, show_default=True, help="Of each category."),
        _workload(
            "-n", "--max-tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Of each answer."
        ),
        _workload("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy."),
        _workload("--top-p", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Mass that is kept."),
        _workload("--seed", type=int, default=0, show_default=True, help="Of marks, filler and sampling."),
        _workload("--ignore-eos", is_flag=True, help="Answers go on to --max-tokens."),
        _workload(
            "--depth",
            metavar="N,...",
            default="0",
            show_default=True,
            callback=number_list,
            help="Tokens of filler in front of each conversation.",
        ),
        _workload(
            "--concurrency",
            metavar="N,...",
            default="1",
            show_default=True,
            callback=number_list,
            help="Conversations in flight.",
        ),
        _workload("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Turns of each side."),
        _workload("--same-prompts", is_flag=True, help="Repeats carry no mark, so a prefix cache knows them."),
    ],
)

output_options = gather(
    OutputOptions,
    "output",
    [
        _output("--out", metavar="FILE", type=_NEW, help="Keep everything as JSON; written after every pass."),
        _output("--report", metavar="HTML", type=_NEW, help="Write a page with plots that needs no other file."),
        _output("--compare", metavar="FILE", type=_EXISTING, help="Show the difference to another kept run."),
        _output(
            "--record",
            metavar="FOLDER",
            type=click.Path(file_okay=False, path_type=Path),
            help="Write what LocalMaxxing takes, one file for each side; needs --hf-id and --quantization.",
        ),
        _output("--hf-id", metavar="ORG/NAME", help="The model on the Hugging Face hub, for --record."),
        _output("--quantization", metavar="NAME", help="Of its weights, like Q4_K_M or fp8, for --record."),
        _output(
            "--hardware",
            metavar="FILE",
            type=_EXISTING,
            help="JSON that `lmx hardware` wrote, for --record.  [default: what this machine tells]",
        ),
        _output("--json", "as_json", is_flag=True, help="Print one JSON object: figures, findings, differences."),
    ],
)
