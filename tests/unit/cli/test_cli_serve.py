"""`blockdraft serve`: what is refused, what is told, and how it ends; a script plays llama-server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are those of POSIX")

ENGINE = """#!{python}
import http.server, json, sys

port = int(sys.argv[sys.argv.index("--port") + 1])
drafts = "--spec-type" in sys.argv and "none-really" not in sys.argv
print("log of the engine", flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, status=200):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        known = {{
            "/health": {{}},
            "/v1/models": {{"data": [{{"id": "a-model"}}]}},
            "/props": {{"default_generation_settings": {{"n_ctx": 4096, "params": {{}}}}, "build_info": "b1"}},
            "/slots": [],
        }}
        self.answer(known.get(self.path, {{}}), 200 if self.path in known else 404)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        timings = {{"draft_n": 40, "draft_n_accepted": 30}} if drafts else {{"draft_n": 0, "draft_n_accepted": 0}}
        self.answer({{"content": "x", "tokens": [1], "tokens_predicted": 64, "stop_type": "limit", "timings": timings}})

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path) -> list[str]:
    path = tmp_path / "llama-server"
    path.write_text(ENGINE.format(python=sys.executable))
    path.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [str(path), "-m", "model.gguf", "--port", str(port)]


def serve(*arguments: str, until: str, number: int = signal.SIGTERM) -> tuple[int, str, str]:
    """Run the command until a line with `until` was printed, then send a signal."""
    command = [sys.executable, "-m", "blockdraft", "serve", "--hardware", "cpu", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if until in line:
                process.send_signal(number)
                break
        rest, _ = process.communicate(timeout=60)
    return process.returncode, "".join(lines) + rest, rest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_tells_what_is_served_and_ends_with_its_child(engine: list[str], number: int, code: int) -> None:
    returned, told, rest = serve("--", *engine, "--spec-type", "ngram-mod", until="serving", number=number)
    assert returned == code, told
    assert "serving a-model on llamacpp b1, context 4096, it drafts: 30 of 40 drafts kept" in told
    assert "  | log of the engine" in told
    assert "stopped: as asked" in rest
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", int(engine[4]))):
        pass


def test_events_as_json(engine: list[str], tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    command = " ".join(["VARIABLE=1", *engine])
    returned, told, _ = serve("--json", "--quiet", "--log", str(log), command, until='"serving"')
    assert returned == 0, told
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [event["name"] for event in events] == ["started", "ready", "serving", "stopping", "stopped"]
    assert events[2]["does_draft"] is False
    assert "log of the engine" in log.read_text()


def test_an_engine_that_was_to_draft_and_does_not_is_told(engine: list[str]) -> None:
    drafting = (*engine, "--spec-type", "ngram-mod", "--alias", "none-really")
    _, told, _ = serve("--", *drafting, until="drafted nothing for an answer")
    assert "it drafted nothing in 64 tokens" in told
    command = [sys.executable, "-m", "blockdraft", "serve", "--hardware", "cpu", "--need-drafts", "--", *drafting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Error: the engine was to draft, and drafted nothing" in done.stderr
    assert "stopping" in done.stderr or "Traceback" not in done.stderr


def test_an_engine_that_ends_at_once_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\necho error: no such model\nexit 1\n")
    path.chmod(0o755)
    command = [sys.executable, "-m", "blockdraft", "serve", "--hardware", "cpu", "--", str(path), "-m", "model.gguf"]
    done = subprocess.run([*command, "--port", "1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ended with exit code 1 before it was ready" in done.stderr
    assert "error: no such model" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Qwen/Qwen3-8B",), "name the engine that is to run Qwen/Qwen3-8B"),
        (("--port", "8000", "--", "llama-server", "-m", "model.gguf"), "the command says its own"),
        (("ls -l",), "vllm serve"),
        (("compose.yaml",), "there is no file compose.yaml"),
        (
            (
                "--hardware",
                "rtx3090",
                "vllm serve Qwen/Qwen3.6-35B-A3B --spec-method dflash --spec-model d --swap-space 4",
            ),
            "the engine would fail",
        ),
    ],
)
def test_wrong_use_is_one_clear_line(run, arguments: tuple[str, ...], message: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
