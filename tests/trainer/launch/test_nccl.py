from pathlib import Path

import pytest

from contracts.errors import ConfigError
from trainer.launch.nccl import nccl_environment

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "/lib"}


def write(folder: Path, text: str) -> str:
    path = folder / "profile.sh"
    path.write_text(text)
    return str(path)


def test_the_vendors_script_is_sourced_and_the_users_own_variables_win(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "echo loud\nNCCL_NET=gIB\nexport NCCL_DEBUG=WARN\nOTHER=1\n"
        "LD_LIBRARY_PATH=/usr/local/gib/lib64:$LD_LIBRARY_PATH\n",
    )
    found = nccl_environment(ENVIRONMENT, nodes=2, mode="auto", profiles=["/nonexistent", script])
    assert found == {"NCCL_NET": "gIB", "LD_LIBRARY_PATH": "/usr/local/gib/lib64:/lib"}


def test_one_machine_a_machine_without_a_script_and_off_change_nothing(tmp_path: Path) -> None:
    script = write(tmp_path, "NCCL_NET=gIB\n")
    assert nccl_environment(ENVIRONMENT, nodes=1, mode="auto", profiles=[script]) == {}
    assert nccl_environment(ENVIRONMENT, nodes=2, mode="off", profiles=[script]) == {}
    assert nccl_environment(ENVIRONMENT, nodes=2, mode="auto", profiles=["/nonexistent"]) == {}


def test_a_script_that_fails_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resources\.nccl=off"):
        nccl_environment(ENVIRONMENT, nodes=2, mode="auto", profiles=[write(tmp_path, "exit 3\n")])
