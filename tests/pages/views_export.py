"""A full and an empty view of the template of the model card."""

from __future__ import annotations

from contracts.artifacts import ExportManifest, Gate, Headline, Latency
from contracts.artifacts.export import Attempt, Parity
from pages.export.card import Artifact, ExportCard, Fact
from pages.markdown import Markdown
from pages.rendering import View

_GATE = Gate(
    name="parity", precision="fp16", status="failed", ran="onnxruntime", figures={"worst": None, "large": "infinite"}
)
_NONE = ExportManifest.model_construct(
    precision="fp32",
    asked_precision="fp32",
    verdict="proven",
    headline=Headline(metric="accuracy", direction="max"),
    proof_samples=None,
    test_samples=0,
    parity={},
    gates=[],
    latency=[],
    latency_left_out={},
    tried=[],
    graphs=[],
    engines=[],
)
_ALL = _NONE.model_copy(
    update={
        "precision": "fp16",
        "parity": {"onnx": {"fp16": Parity(ran="onnxruntime", passed=True)}},
        "gates": [_GATE],
        "latency": [
            Latency(
                runner="onnxruntime", precision="fp16", device="CPU", batch=8,
                p50_ms=1.0, p90_ms=2.0, p99_ms=3.0, images_per_s=8000.0, repeats=9,
            )
        ],
        "latency_left_out": {"engine sm89": "not run: no GPU"},
        "tried": [Attempt(precision="int8", outcome="failed", kept_fp32=["node", "other"], reason="too far")],
    }
)  # fmt: skip

EXAMPLES: dict[type[View], tuple[View, View]] = {
    ExportCard: (
        ExportCard(
            _ALL,
            Markdown("image classifier"),
            (
                Artifact("model.onnx", "onnxruntime", "ab", "onnxruntime 1", "its server", is_served=True),
                Artifact("engines/sm80.engine", "tensorrt_rtx", "cd", "-", "all of it", note="outside"),
            ),
            (Markdown("An image in."), Markdown("10 classes: `0`.")),
            (Fact("Input", "[batch, 3] float32", "image"), Fact("Network", "resnet", is_code=True)),
            (Markdown("    python predict.py FILE"),),
            "nvcr.io/image",
            ("accuracy",),
            (("fp16", (0.5,)), ("fp32", (None,))),
            (("onnxruntime", "fp16", (1, 0.5, 8, 8000.0, None)),),
            (Fact("Checkpoint", "ab", is_code=True),),
            (Markdown("It always names a class."),),
            (_GATE,),
        ),
        ExportCard(_NONE, Markdown(""), (), (), (), (), "", (), (), (), (), (), ()),
    )
}
