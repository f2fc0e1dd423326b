"""Checks and probes of scripted servers, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.endpoint.probe import ProbeReport, ProbeSettings, probe
from blockdraft.bench.endpoint.samples import SamplingPlan
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.endpoint.verify import VerifyReport, VerifySettings, verify
from blockdraft.testing.scripted_server import ScriptedServer

Result = TypeVar("Result")

PROMPTS = {f"prompt {letter}": f"Say something about {letter}" for letter in "abcdefgh"}
"""They end differently, as the answers of a scripted server depend on no more than that."""
QUICK = SamplingPlan(bias=0.1)
"""A tenth of the requests that the default plan needs."""


def on_server(do: Callable[..., Awaitable[Result]], *servers: ScriptedServer) -> Result:
    """Run what takes one connected model for each server."""

    async def run() -> Result:
        async with AsyncExitStack() as stack:
            connections = [Connection("http://scripted", transport=server.transport()) for server in servers]
            return await do(*[await ServedModel.connect(await stack.enter_async_context(one)) for one in connections])

    return asyncio.run(run())


def verified(
    server: ScriptedServer,
    baseline: ScriptedServer | None = None,
    *,
    sampling: SamplingPlan | None = None,
    max_tokens: int = 24,
) -> VerifyReport:
    """Return the report of the gate; samples are left out unless there is a plan for them."""

    async def run(model: ServedModel, other: ServedModel | None = None) -> VerifyReport:
        settings = VerifySettings(max_tokens=max_tokens, sampling=sampling)
        return await verify(model, other, PROMPTS, settings, lambda _: None)

    return on_server(run, server, *([baseline] if baseline else []))


def probed(server: ScriptedServer, settings: ProbeSettings | None = None) -> ProbeReport:
    """Return the report of the probe, on four prompts."""

    async def run(model: ServedModel) -> ProbeReport:
        prompts = dict(list(PROMPTS.items())[:4])
        return await probe(model, prompts, settings or ProbeSettings(), lambda _: None)

    return on_server(run, server)


def verdicts(report: VerifyReport) -> dict[str, str]:
    """Return the verdict of each check."""
    return {check.name: check.verdict for check in report.checks}
