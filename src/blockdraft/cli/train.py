"""`blockdraft train`: a drafter from a recipe."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockdraft.cli.options import debug_option
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import note, stderr_console, working

if TYPE_CHECKING:
    from blockdraft.train.recipe import Recipe
    from blockdraft.train.run import Listener
    from blockdraft.train.trainer import Outcome, Progress

_INTERRUPTED = 130


@click.command("train")
@click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--show", is_flag=True, help="Print the recipe with every key, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the result.")
@debug_option
def command(recipe: Path, overrides: tuple[str, ...], show: bool, as_json: bool) -> None:
    """Train a drafter as RECIPE says; the same command goes on with a run that was stopped.

    \b
    blockdraft train recipes/quickstart_cpu.toml
    blockdraft train recipes/smollm2_dspark.toml run.out=runs/mine optimizer.learning_rate=5e-4
    torchrun --nproc-per-node 2 -m blockdraft train recipes/smollm2_dspark.toml
    """  # noqa: D301 - click wants the character itself
    with working("starting"):  # the first import of torch takes seconds
        from blockdraft.train.recipe import dump_recipe, load_recipe  # noqa: PLC0415
    parsed = load_recipe(recipe, overrides)
    if show:
        click.echo(dump_recipe(parsed), nl=False)
        return
    from blockdraft.train.run import train  # noqa: PLC0415

    with ExitStack() as stack:
        outcome = train(parsed, _listener(parsed, stack))
    _tell(outcome, as_json)
    if outcome.was_interrupted:
        click.get_current_context().exit(_INTERRUPTED)


def _listener(recipe: Recipe, stack: ExitStack) -> Listener:
    from blockdraft.train.run import Listener  # noqa: PLC0415

    line = stack.enter_context(working("loading the target"))
    console = stderr_console()
    started = time.monotonic()
    first: list[tuple[int, float]] = []

    def on_features(done: int, total: int) -> None:
        rate = done / (time.monotonic() - started)
        text = f"the target reads the data: {done:,} of {total:,} tokens, {rate:,.0f} tokens/s"
        line(f"{text}, {_duration((total - done) / max(rate, 1e-9))} left")
        if not console.is_terminal:
            console.print(text)

    def on_progress(progress: Progress) -> None:
        if not first:
            first.append((progress.step, time.monotonic()))
        text = f"step {progress.step:,} of {progress.num_steps:,}  " + "  ".join(_figures(progress))
        steps, steps_left = progress.step - first[0][0], progress.num_steps - progress.step
        if steps and steps_left:
            text += f"  {_duration((time.monotonic() - first[0][1]) / steps * steps_left)} left"
        line(text)
        if progress.acceptance is not None or not console.is_terminal:
            console.print(text)

    return Listener(notify=note, features=on_features, progress=on_progress)


def _figures(progress: Progress) -> list[str]:
    values = progress.values
    if progress.acceptance is not None:
        figures = [f"mean acceptance length {values['mean_acceptance_length']:.3f}"]
        if "held_out_loss" in values:
            figures.append(f"held-out loss {values['held_out_loss']:.3f}")
        slots = [value for name, value in values.items() if name.startswith("conditional_acceptance_")]
        return [*figures, "by slot " + " ".join(f"{value:.2f}" for value in slots)]
    return [
        f"loss {values['loss']:.4f}",
        f"acceptance {values['acceptance']:.3f}",
        f"{values['blocks_per_s']:,.0f} blocks/s",
        f"{values['model_gflops_per_s']:,.0f} GFLOP/s",
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if minutes else f"{rest} s"


def _tell(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        record: dict[str, Any] = {
            "step": outcome.step,
            "num_steps": outcome.num_steps,
            "drafter": str(outcome.drafter),
            "stopped_early": outcome.stopped_early,
            "was_interrupted": outcome.was_interrupted,
            "acceptance": outcome.best.to_dict() if outcome.best else None,
        }
        print_json(record)
        return
    if outcome.was_interrupted:
        note(f"interrupted after step {outcome.step:,}; the same command goes on from there")
    elif outcome.stopped_early:
        note(f"stopped after step {outcome.step:,}: acceptance has not grown for a while")
    if outcome.best:
        length = outcome.best.mean_acceptance_length
        click.echo(f"{outcome.drafter}: mean acceptance length {length:.3f} on {outcome.best.num_prompts} prompts")
    else:
        click.echo(f"{outcome.drafter}: acceptance was not measured yet")
