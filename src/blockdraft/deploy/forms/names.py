"""What a service is called."""

from __future__ import annotations

import re

from blockdraft.deploy.deployment import Deployment

_LONGEST = 50


def service_name(deployment: Deployment) -> str:
    """Return a name of letters, digits and dashes, as DNS, systemd and Docker all take it."""
    model = (deployment.served_name or deployment.target).split(",")[0].rstrip("/").split("/")[-1]
    text = re.sub(r"[^a-z0-9]+", "-", model.lower().removesuffix(".gguf"))
    return f"{deployment.engine}-{text}".strip("-")[:_LONGEST].rstrip("-")
