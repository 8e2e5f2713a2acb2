"""NCCL's settings for several machines with GPUDirect: the vendor's own script is sourced, its values are never copied.

A3 Mega machines bring TCPXO's script, A3 Ultra and A4 that of gIB, each with the plugin that it belongs to
(https://docs.cloud.google.com/ai-hypercomputer/docs/nccl/overview). Where neither is there NCCL takes plain TCP.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from contracts.errors import ConfigError

PROFILES = ("/usr/local/gib/scripts/set_nccl_env.sh", "/var/lib/tcpxo/lib64/nccl-env-profile.sh")
_PREFIXES = ("NCCL_", "LD_LIBRARY_PATH")
_TIMEOUT_S = 30.0


def nccl_environment(
    environment: Mapping[str, str], *, nodes: int, mode: Literal["auto", "off"], profiles: Sequence[str] = PROFILES
) -> dict[str, str]:
    """Return the variables that the vendor's script sets, without those of NCCL that are set already.

    Args:
        environment: Of this process.
        nodes: Machines of the job; one alone needs no network.
        mode: `resources.nccl`.
        profiles: Scripts; the first that is there is sourced.

    Raises:
        ConfigError: The script fails.
    """
    found = next((path for path in profiles if Path(path).is_file()), None)
    if mode == "off" or nodes == 1 or found is None:
        return {}
    command = ["bash", "-c", 'set -a; . "$1" >&2; exec env -0', "bash", found]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        raise ConfigError(
            f"NCCL's profile {found} cannot be sourced: {'; '.join([str(error), *told[-1:]])}",
            allowed="a script that ends with 0 within 30 s",
            todo="repair the machine's image, or set resources.nccl=off and what NCCL needs in resources.env",
        ) from None
    said = [item.partition("=") for item in done.stdout.decode(errors="surrogateescape").split("\0") if item]
    return {
        name: value
        for name, _, value in said
        if name.startswith(_PREFIXES)
        and environment.get(name) != value
        and not (name.startswith("NCCL_") and name in environment)
    }
