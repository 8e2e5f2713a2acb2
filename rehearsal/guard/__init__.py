"""Guard of Python processes: PYTHONPATH leads to the sitecustomize here, which refuses sockets to other machines."""

from pathlib import Path

PYTHON_GUARD = Path(__file__).parent
"""First in a child's PYTHONPATH."""
REFUSED_VARIABLE = "SHARDLINE_REHEARSAL_REFUSED"
"""Environment variable that names the file where refused hosts are appended, one per line."""
