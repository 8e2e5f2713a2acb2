from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest

from contracts.errors import ConfigError
from trainer.export.gates.sessions import CPU, CUDA, find_outside, open_session


def test_a_provider_that_is_not_there_is_refused_and_the_cpu_does_not_stand_in(exported: Any) -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has it")
    with pytest.raises(ConfigError, match=rf"has no {CUDA}\n  allowed: onnxruntime-gpu"):
        open_session(exported.fp32, providers=(CUDA, CPU))


def test_a_provider_that_does_not_load_is_refused(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu where CUDA's libraries are missing: it offers the provider, and takes the CPU in its place."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    session = onnxruntime.InferenceSession

    def on_the_cpu(path: Any, options: Any, providers: Any, **settings: Any) -> Any:
        assert providers == [CUDA, CPU]
        return session(path, options, providers=[CPU], **settings)

    monkeypatch.setattr(onnxruntime, "InferenceSession", on_the_cpu)
    with pytest.raises(ConfigError, match=f"did not take {CUDA}"):
        open_session(exported.fp32, providers=(CUDA, CPU))


def test_nodes_that_another_provider_runs_are_counted(exported: Any) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(exported.fp32, options, providers=[CPU])
    found = find_outside(session, CUDA)
    assert found.keys() == {CPU} and found[CPU] > 5
    assert find_outside(session, CPU) == {}


def test_settings_reach_the_session(exported: Any) -> None:
    options = open_session(
        exported.fp32, threads=3, level="ORT_DISABLE_ALL", in_graph_order=True, arena=False
    ).get_session_options()
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.execution_order == onnxruntime.ExecutionOrder.PRIORITY_BASED
    assert options.enable_cpu_mem_arena is False
    (logits,) = open_session(exported.fp32).run(None, {"images": exported.images[:2]})
    assert np.isfinite(logits).all()
