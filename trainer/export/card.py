"""The model card of an export, as Markdown: verdict, use, gates, metrics, latency, lineage and limits.

Every figure is the manifest's. Names and paths of machines are not written, and text from data is escaped.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence

from contracts.artifacts import CheckpointManifest, ExportManifest
from contracts.artifacts.export import Figure
from contracts.artifacts.signature import BATCH
from contracts.proof import verdict
from contracts.serving import LOADED_BY, NO_RELEASE, ONNX, READ_AT, RELEASES, TENSORRT_RTX, image_of
from trainer.export.triton import docker_command
from trainer.predict.bundle import LABELS_NAME, kind_of

_MOST_NAMES = 100
# Special characters of Markdown or HTML (CommonMark 0.31); an underscore within a word is not special.
_SPECIAL = re.compile(r"[&<>`*\[\]\\|~$#]|(?<!\w)_|_(?!\w)|:(?=//)")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_HIGHEST = "One score (logit) per class; the highest is the prediction, even for an input that belongs to no class."
_ABOUT = {
    "image_classification": _HIGHEST,
    "image_multilabel": "One score (logit) per class, whose sigmoid is a probability. An image has each class with a "
    f"probability at or above its threshold in `{LABELS_NAME}`, which gives the largest F1 on the validation split.",
    "text_classification": _HIGHEST,
}
_GATES = """Outputs of a file compared with the trained model in torch (fp32), on samples of the test split. Relative
error: the largest difference of an output over the range of torch's. On a CPU ONNX Runtime computes fp16 in fp32: there
parity shows the rounding of weights only."""
_LIMITS = """- Metrics hold for data like the test split; accuracy on other data is unknown.
- Scores are not calibrated probabilities: a high score is no guarantee."""


class _Markdown(str):
    """Markdown that needs no escaping."""

    __slots__ = ()


def _one_line(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(lambda match: " " if match[0] in "\t\n\r" else "\ufffd", text).split())


def _escape(text: str) -> _Markdown:
    """Return text as one line of Markdown: characters with a meaning become references."""
    return _Markdown(_SPECIAL.sub(lambda match: f"&#{ord(match[0])};", _one_line(text)))


def _code(text: str) -> _Markdown:
    """Return text as inline code, or escaped where it has characters that inline code in a table cannot contain."""
    line = _one_line(text)
    return _Markdown(f"`{line}`") if line and not re.search("[`|<>&]", line) else _escape(text)


def _figure(value: Figure) -> str:
    if value is None:
        return "-"
    # JSON has no infinity: parity stores the largest float.
    if isinstance(value, float) and not abs(value) < sys.float_info.max:
        return "not finite"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def render_card(document: ExportManifest, checkpoint: CheckpointManifest | None = None) -> str:
    """Return the card.

    Args:
        document: The manifest; its list of files and its seal need not be final.
        checkpoint: The exported checkpoint, for names of classes, network and training.
    """
    served, headline, gates = document.served_file, document.headline, []
    for gate in document.gates:
        figures = _figures(gate.figures), _figures(gate.limits), f"{gate.ran}, {gate.device or 'CPU'}"
        gates.append([gate.name, gate.precision, _code(gate.file), gate.status, *figures, gate.reason])
    names = dict.fromkeys([headline.metric, *(name for values in document.metrics.values() for name in values)])
    metrics = [[model, *(_figure(values.get(name)) for name in names)] for model, values in document.metrics.items()]
    latency = [[entry.ran, str(entry.batch), _figure(entry.median_ms), str(entry.calls)] for entry in document.latency]
    rows = [[each.precision, each.outcome, ", ".join(each.kept_fp32) or "-", each.reason] for each in document.tried]
    better = "higher" if headline.direction == "max" else "lower"
    samples = f"{document.proof_samples} of {document.test_samples} samples of the test split"
    columns = "Gate", "Precision", "File", "Result", "Figures", "Limits", "Ran by", "Reason"
    facts = _table(["Property", "Value"], _facts(document).items())
    sections = {
        "What it is": f"{_describe(document.task, checkpoint)}\n\n{facts}",
        "How to use it": _describe_use(document),
        "Gates": f"{_GATES}\n\n{_table(columns, gates)}",
        "Metrics": f"On {samples}, not used by training. Headline: {_code(headline.metric)}, {better} is better.\n\n"
        + _table(["Model", *names], metrics),
        "Latency": _table(["Ran by", "Batch", "Median ms", "Calls"], latency) if latency else "Not measured.",
        "What was tried": f"Requested: {document.asked_precision}. Shipped: {document.precision}.\n\n"
        + _table(["Precision", "Outcome", "Modules kept in fp32", "Reason"], rows),
        "Lineage": _table(["Origin", "Value"], _lineage(document, checkpoint).items()),
        "Limits": _LIMITS,
    }
    body = "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())
    return f"""# Model card: {_escape(document.task)}, {document.precision}

**Verdict: {_escape(verdict(document.sealed()))}** (at export time). Served: {_code(served.name)} by
{LOADED_BY[document.runtime]}, sha256 {served.sha256}
{body}"""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; text that is not _Markdown is escaped."""
    cells = [[text if isinstance(text, _Markdown) else _escape(text) for text in row] for row in [header, *rows]]
    cells.insert(1, [_Markdown("---")] * len(header))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _figures(values: Mapping[str, Figure]) -> str:
    return ", ".join(f"{name} {_figure(value)}" for name, value in values.items()) or "-"


def _describe(task: str, checkpoint: CheckpointManifest | None) -> str:
    about = _ABOUT.get(task, "The code of the task defines inputs and outputs.")
    if checkpoint is None or kind_of(task) == "own":
        return about
    data, names = checkpoint.data, checkpoint.classes
    text = f"Texts are truncated to {data.get('max_length')} tokens."
    if kind_of(task) == "images":
        text = f"Pixels / 255 are normalised with mean {_code(str(data['mean']))}, std {_code(str(data['std']))}."
    listed = ", ".join(map(_code, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{about} {text}\n\n{len(names)} classes, in the order of the scores (`{LABELS_NAME}`): {listed}"


def _describe_use(document: ExportManifest) -> str:
    """Return the commands that run the model; of an own task, lines of onnxruntime."""
    kind, signature = kind_of(document.task), document.signature
    if kind == "own":
        sizes = {BATCH: 1, **{name: dimension.opt for name, dimension in signature.dimensions.items()}}
        arrays = ", ".join(
            f'"{name}": numpy.zeros({[sizes.get(str(size), size) for size in spec.shape]}, "{spec.dtype}")'
            for name, spec in signature.inputs.items()
        )
        text = f"""With numpy and onnxruntime; replace the zeros by the result of `prepare` and `collate`:

    import numpy, onnxruntime
    session = onnxruntime.InferenceSession("{document.graph().name}")
    outputs = session.run({json.dumps(list(signature.outputs))}, {{{arrays}}})

With the code of its run, where the task has the method `answer`: `shardline predict RUN SAMPLE...`"""
    else:
        sample, package = ("IMAGE", "Pillow") if kind == "images" else ('"a text"', "tokenizers")
        text = f"""On any machine, with numpy, onnxruntime and {package}: `python predict.py {sample} ...`

With shardline, by the engine on its GPU, else by the graph on the CPU: `shardline predict FOLDER {sample} ...`

Preprocessing is part of the model: `predict.py` does it. Any other lowers accuracy without an error."""
    if document.runtime == TENSORRT_RTX:
        return f"{text}\n\nTriton loads no engine of TensorRT-RTX."
    if (image := image_of(document)) is None:
        return f"{text}\n\nWith Triton: {NO_RELEASE}. Known on {READ_AT} are those of TensorRT {', '.join(RELEASES)}."
    sha256 = document.served_file.sha256 if document.runtime == ONNX else ""
    command = shlex.join(docker_command(image, "/PATH/TO/triton", sha256=sha256))
    return f"{text}\n\nWith Triton (no server has loaded this repository): `{command}`"


def _facts(document: ExportManifest) -> dict[str, str]:
    signature, engine = document.signature, document.engine
    facts = {}
    for name, spec in {**signature.inputs, **signature.outputs}.items():
        kind = "Input" if name in signature.inputs else "Output"
        facts[f"{kind} {name}"] = f"{spec.dtype}, {' x '.join(map(str, spec.shape))}"
    for name, size in signature.dimensions.items():
        facts[f"Dimension {name}"] = f"{size.min} to {size.max}, tuned for {size.opt}, multiples of {size.multiple}"
    for entry in document.graphs:
        facts[f"Graph, {entry.precision}"] = _code(f"{entry.name}, {entry.bytes} bytes, sha256 {entry.sha256}")
    if engine is not None:
        facts["Engine"] = _code(f"{engine.name}, {engine.bytes} bytes, sha256 {engine.sha256}")
        batches = f"batches of up to {engine.max_batch}, tuned for {engine.opt_batch}"
        facts["Engine built by"] = f"{engine.builder} for {engine.target}, {batches}"
    return facts


def _lineage(document: ExportManifest, checkpoint: CheckpointManifest | None) -> dict[str, str]:
    lineage: dict[str, str] = {"Checkpoint, sha256 of its parameters": _code(document.checkpoint_sha256)}
    if checkpoint is not None:
        lineage["Training"] = f"{checkpoint.fingerprint}, {checkpoint.step} steps, {checkpoint.epoch} epochs"
        lineage["Network"] = _code(str(checkpoint.model.get("architecture", "-")))
        lineage["Training started with"] = "random" if checkpoint.initial is None else checkpoint.initial.in_words()
    lineage |= {"Shards": _code(document.shards_fingerprint), "Export": _code(document.fingerprint)}
    lineage |= {f"Made from: {name}": _code(value) for name, value in document.made_from.items()}
    return lineage | {f"Made with: {name}": _code(value) for name, value in document.made_with.items()}
