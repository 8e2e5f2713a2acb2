"""Network guard: a sitecustomize module, loaded through PYTHONPATH, that refuses connections to other machines."""

from pathlib import Path

PYTHON_GUARD = Path(__file__).parent
"""First entry of a child's PYTHONPATH."""
REFUSED_VARIABLE = "SHARDLINE_REHEARSAL_REFUSED"
"""Environment variable that names the file where refused hosts are appended, one per line."""
