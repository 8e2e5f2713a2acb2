"""predict.py alone: the trainer's pixels to the bit, every entry obeyed, and nothing but three packages needed."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from records.decode import decode_rgb
from sharding.names import IGNORED_NAMES
from tests.trainer.export import colours
from tests.trainer.export.colours import GRAPH_NAME, SIZE, encode
from trainer.predict import runtimes, serving
from trainer.tasks.images import predict
from trainer.tasks.images.transforms import EvaluationTransform

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (7, 5, 3), dtype=np.uint8).repeat(5, axis=0).repeat(9, axis=1)  # 35 x 45
NOISE = RANDOM.integers(0, 256, (33, 21, 3), dtype=np.uint8)
IMAGE = Image.fromarray(PIXELS)


def save(image: Image.Image, name: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return save(IMAGE, "JPEG", exif=exif)


def png_of_16_bit_rgb() -> bytes:
    values = RANDOM.integers(0, 1 << 16, (9, 14, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 14, 9, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


FILES: dict[str, bytes] = {
    "grey png": save(IMAGE.convert("L"), "PNG"),
    "bilevel png": save(IMAGE.convert("1"), "PNG"),
    "grey png with alpha": save(IMAGE.convert("LA"), "PNG"),
    "rgba png": save(Image.fromarray(RANDOM.integers(0, 256, (20, 31, 4), dtype=np.uint8)), "PNG"),
    "palette": save(IMAGE.convert("P"), "PNG"),
    "palette with a transparent colour": save(IMAGE.convert("P"), "PNG", transparency=3),
    "palette with alpha": save(IMAGE.convert("P"), "PNG", transparency=bytes(range(256))),
    "16-bit grey png": save(Image.fromarray(RANDOM.integers(0, 1 << 16, (40, 22)).astype(np.uint16)), "PNG"),
    "16-bit rgb png": png_of_16_bit_rgb(),
    "16-bit tiff": save(Image.fromarray(RANDOM.integers(0, 1 << 16, (12, 22)).astype(np.uint16)), "TIFF"),
    "4:2:0": simplejpeg.encode_jpeg(PIXELS, quality=80, colorsubsampling="420"),
    "4:2:0 of odd size": simplejpeg.encode_jpeg(np.ascontiguousarray(NOISE), quality=60, colorsubsampling="420"),
    "4:2:2 of odd size": simplejpeg.encode_jpeg(np.ascontiguousarray(NOISE), quality=90, colorsubsampling="422"),
    "4:4:0": simplejpeg.encode_jpeg(PIXELS, quality=90, colorsubsampling="440"),
    "4:1:1": simplejpeg.encode_jpeg(PIXELS, quality=90, colorsubsampling="411"),
    "4:4:4": simplejpeg.encode_jpeg(PIXELS, quality=90, colorsubsampling="444"),
    "progressive": save(Image.fromarray(NOISE), "JPEG", progressive=True, quality=70),
    "grey jpeg": save(IMAGE.convert("L"), "JPEG"),
    "cmyk": save(Image.fromarray(NOISE).convert("CMYK"), "JPEG"),
    "rotated by exif": rotated(),
    "jpeg kept as rgb": save(IMAGE, "JPEG", keep_rgb=True),
    "gif": save(IMAGE, "GIF"),
    "gif with transparency": save(IMAGE.convert("P"), "GIF", transparency=0),
    "webp": save(IMAGE, "WEBP", quality=60),
    "webp with alpha": save(IMAGE.convert("RGBA"), "WEBP", lossless=True),
    "bmp": save(IMAGE, "BMP"),
    "tiff": save(IMAGE, "TIFF", compression="tiff_lzw"),
    "ppm": save(IMAGE, "PPM"),
    "pgm": save(IMAGE.convert("L"), "PPM"),
    "of the very size": save(Image.fromarray(NOISE[:SIZE, :SIZE]), "PNG"),
    "smaller": save(Image.fromarray(NOISE[:5, :7]), "PNG"),
    "one pixel": save(Image.fromarray(NOISE[:1, :1]), "PNG"),
    "taller by an odd number": save(Image.fromarray(NOISE[:32]), "PNG"),
    "wider by an odd number": save(Image.fromarray(NOISE[:14]), "PNG"),
    "very wide": save(Image.fromarray(RANDOM.integers(0, 256, (3, 301, 3), dtype=np.uint8)), "PNG"),
}


def transform() -> EvaluationTransform:
    (mean, std) = (tuple(values) for values in (colours.MEAN, colours.STD))
    return EvaluationTransform(SIZE, mean, std)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    colours.write_export(folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = []
    # Beside the odd formats, all of one colour on the average, some of every class.
    named = {f"{label}.png": encode(colours.draw(label, 0)) for label in range(len(colours.CLASSES))}
    for name, content in {**FILES, **named}.items():
        # No suffix: formats are found by content.
        paths.append(folder / name)
        paths[-1].write_bytes(content)
    return paths


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_the_trainers_to_the_bit(folder: Path, name: str) -> None:
    expected = transform().normalise(transform().pixels(decode_rgb(FILES[name]))[None]).numpy()
    preprocessing = predict.Preprocessing.read(folder / "preprocess.json")
    found = preprocessing.normalise(preprocessing.load(FILES[name])[None])
    assert (found.shape, found.dtype, found.flags.c_contiguous) == ((1, 3, SIZE, SIZE), np.float32, True)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("mean", "std"), [([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]), ([0, 1 / 3, 1], [1, 0.1, 0.7])]
)
def test_every_value_is_normalised_as_in_training(folder: Path, mean: list[float], std: list[float]) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    values = json.loads((folder / "preprocess.json").read_text()) | {"mean": mean, "std": std}
    expected = EvaluationTransform(16, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])).normalise(ramp)
    assert predict.Preprocessing(**values).normalise(ramp).tobytes() == expected.numpy().tobytes()


# Starts Python with nothing to import but the three packages, and runs a file as a program.
ALONE = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    names = {name.partition(".")[0] for name in sys.modules}
    print(sorted(names - sys.stdlib_module_names - {"__main__"}), file=sys.stderr)
"""


def run_alone(folder: Path, *arguments: str | Path, packages: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the shipped file without site-packages, without our packages, from a folder that is neither."""
    command = [sys.executable, "-I", "-S", "-c", ALONE, str(packages), str(folder / "predict.py")]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=packages,
        timeout=120,
        check=False,
        **options,
    )


def open_folder(folder: Path) -> tuple[predict.Classifier, runtimes.Runner]:
    classifier = predict.open_files(lambda name: folder / name)
    return classifier, runtimes.open_graph(folder / classifier.graph.path, classifier.graph, 1)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with numpy, Pillow and onnxruntime, and nothing else."""
    folder = tmp_path_factory.mktemp("packages")
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "PIL", "pillow.libs", "onnxruntime"):
        if (site / name).exists():
            (folder / name).symlink_to(site / name)
    return folder


def expected_answers(folder: Path, paths: list[Path]) -> list[tuple[str, float]]:
    """Return label and probability of images by the trainer's pixels, and by the trainer's session."""
    from tests.trainer.export.graphs import run_onnx

    pixels = np.stack([transform().pixels(decode_rgb(path.read_bytes())) for path in paths])
    logits = run_onnx(folder / GRAPH_NAME, transform().normalise(pixels).numpy()).astype(np.float64)
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return [(colours.CLASSES[row.argmax()], float(row.max())) for row in scores]


def test_it_needs_three_packages_and_answers_as_the_trainer(folder: Path, files: list[Path], packages: Path) -> None:
    for module, name in ((predict, "predict.py"), (serving, "serving.py"), (runtimes, "runtimes.py")):
        assert (folder / name).read_bytes() == Path(module.__file__).read_bytes()
    answer = run_alone(folder, *files, "--json", "--top=2", packages=packages)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "['PIL', 'numpy', 'onnxruntime', 'reading', 'runtimes', 'serving']\n"
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["file"] for line in lines] == [str(path) for path in files]
    best = [line["predictions"][0] for line in lines]
    expected = expected_answers(folder, files)
    assert len({label for label, _ in expected}) == 6
    assert [found["label"] for found in best] == [label for label, _ in expected]
    np.testing.assert_allclose([found["score"] for found in best], [score for _, score in expected], rtol=1e-9)
    assert all(len(line["predictions"]) == 2 for line in lines)


def test_bad_images_are_named_and_the_others_answered(
    folder: Path, files: list[Path], packages: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(FILES["4:2:0"][: len(FILES["4:2:0"]) * 3 // 4])
    text = tmp_path / "text.png"
    text.write_text("hello")
    answer = run_alone(folder, tmp_path / "none.png", files[0], broken, text, files[1], packages=packages)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert [line.partition(": ")[0] for line in answer.stdout.splitlines()] == [str(files[0]), str(files[1])]
    for words in (
        f"{tmp_path}/none.png: cannot be read: No such file",
        f"{broken}: damaged image: image file is truncated",
        f"{text}: not an image of a known format",
        "  to do: ",
    ):
        assert words in answer.stderr
    answers = run_alone(folder, broken, files[0], "--json", packages=packages)
    first, second = (json.loads(line) for line in answers.stdout.splitlines())
    assert (first["file"], "truncated" in first["error"]) == (str(broken), True)
    assert second["predictions"]
    assert answers.returncode == 2


def test_paths_come_from_standard_input_and_an_empty_line_asks_for_answers(folder: Path, files: list[Path]) -> None:
    command = [sys.executable, "-I", str(folder / "predict.py"), "--json", "--json-lines=-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{json.dumps(str(files[0]))}\n\n")
        process.stdin.flush()
        # Fewer than a batch: without the empty line it would wait here for ever.
        assert json.loads(process.stdout.readline())["file"] == str(files[0])
        rest, _ = process.communicate("".join(f"{json.dumps(str(path))}\n" for path in files[1:]), timeout=120)
    assert process.returncode == 0
    assert [json.loads(line)["file"] for line in rest.splitlines()] == [str(path) for path in files[1:]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "none of images was given"),
        (("--top=0", "x.png"), "--top 0: allowed are whole numbers from 1"),
        (("--model=none.onnx", "x.png"), "none.onnx is not there"),
        (("--column=x", "x.png"), "--column x: it is for a --manifest"),
        (("--url=http://127.0.0.1:1/v2/models/m", "x.png"), "http://127.0.0.1:1/v2/models/m does not answer: "),
    ],
)
def test_bad_arguments_end_with_2(folder: Path, packages: Path, arguments: tuple[str, ...], words: str) -> None:
    answer = run_alone(folder, *arguments, packages=packages)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values.update(layout="NWHC"), 'layout "NWHC"'),
        (lambda values: values.update(range=[0, 2]), "range [0, 2]"),
        (lambda values: values.update(format_version=2), "format_version 2"),
        (lambda values: values.update(mean=[0.5, 0.5]), "mean [0.5, 0.5]"),
        (lambda values: values.update(std=[1, 1, 0]), "std [1, 1, 0]"),
        (lambda values: values.update(max_batch=0), "max_batch 0"),
        (lambda values: values.update(model="../model.onnx"), 'model "../model.onnx"'),
        (lambda values: values.update(gamma=2.2), "not known: ['gamma']"),
        (lambda values: values.pop("std"), "missing: ['std']"),
        (lambda values: values.update(layout="NHWC"), "say images float32 [None, 12, 12, 3]"),
        (lambda values: values.update(input="pictures"), "say pictures"),
        (lambda values: values.update(input=[]), "input []"),
        (lambda values: values.update(labels="none.json"), "none.json cannot be read"),
    ],
)
def test_what_is_not_known_is_refused(folder: Path, tmp_path: Path, change: Change, words: str) -> None:
    values = json.loads((folder / "preprocess.json").read_text())
    change(values)
    for name in ("labels.json", GRAPH_NAME):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "preprocess.json").write_text(json.dumps(values))
    with pytest.raises(runtimes.BadFolder) as error:
        open_folder(tmp_path)
    assert words in str(error.value)
    assert "to do:" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"color": "BGR"}, lambda pixels: pixels[..., ::-1]),
        ({"range": [0, 255]}, lambda pixels: pixels * 255.0),
        ({"layout": "NHWC"}, lambda pixels: pixels),
        ({"crop": "none"}, None),
        ({"filter": "bicubic"}, None),
        ({"image_size": 9}, None),
    ],
)
def test_every_entry_is_obeyed(folder: Path, changes: dict[str, Any], expected: Callable[[Any], Any] | None) -> None:
    values = json.loads((folder / "preprocess.json").read_text()) | {"mean": [0, 0, 0], "std": [1, 1, 1]}
    plain, changed = predict.Preprocessing(**values), predict.Preprocessing(**{**values, **changes})
    content = FILES["4:4:4"]
    one = plain.normalise(plain.load(content)[None]).transpose(0, 2, 3, 1)
    other = changed.normalise(changed.load(content)[None])
    assert other.shape[1:] == changed.input_shape
    other = other if changed.layout == "NHWC" else other.transpose(0, 2, 3, 1)
    if expected is None:
        assert one.shape != other.shape or not np.allclose(one, other)
    else:
        np.testing.assert_allclose(expected(one), other, rtol=1e-6)


def test_a_batch_past_the_largest_is_refused(folder: Path) -> None:
    classifier, run = open_folder(folder)
    assert len(classifier.answer(np.zeros((5, SIZE, SIZE, 3), np.uint8), run, None)) == 5
    with pytest.raises(ValueError, match="6 images in a batch: the model takes 5 at most"):
        classifier.answer(np.zeros((6, SIZE, SIZE, 3), np.uint8), run, None)


def test_labels_that_are_not_as_many_as_outputs_are_refused(folder: Path) -> None:
    classifier, run = open_folder(folder)
    fewer = predict.Classifier(classifier.preprocessing, classifier.labels[1:])
    with pytest.raises(runtimes.BadFolder, match="there are 5 labels"):
        fewer.answer(np.zeros((1, SIZE, SIZE, 3), np.uint8), run, None)


def test_outputs_that_are_not_numbers_are_no_answer(folder: Path) -> None:
    classifier, _ = open_folder(folder)
    nan = np.full((1, len(colours.CLASSES)), np.nan, np.float32)
    (answer,) = classifier.answer(np.zeros((1, SIZE, SIZE, 3), np.uint8), lambda images: {"logits": nan}, 1)
    assert answer == {"error": "the model's outputs for it are not finite numbers"}


def test_folders_manifests_and_lines_name_images_and_answers_are_a_table(
    folder: Path, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name, label in (("in/b.png", 1), ("in/below/a.png", 2), ("c.png", 0)):
        (tmp_path / name).write_bytes(encode(colours.draw(label, 0)))
    # Names that sharding leaves out, at any depth, and one that it takes though it is no image.
    for name in ("._b.png", "Thumbs.db", "__MACOSX/below/a.png", "below/.thumbnails/a.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"none")
    (tmp_path / "in" / "notes.txt").write_text("no image")
    for name in ("in/c.jfif", "in/d"):
        (tmp_path / name).write_bytes(encode(colours.draw(0, 0)))
    table = tmp_path / "list.csv"
    table.write_text(f"kind,path\nx,{tmp_path}/c.png\ny,{tmp_path}/none.png\n")
    given = (tmp_path / "in", f"--manifest={table}", "--column=path", "--lines=-", "--format=csv", "--top=1")
    found = run_alone(folder, *given, packages=packages, input=f"{tmp_path}/c.png\n")
    assert found.returncode == 2
    rows = [row.split(",") for row in found.stdout.splitlines()]
    assert rows[0] == ["sample", "label", "score", "error"]
    names = [colours.CLASSES[label] for label in (1, 2, 0, 0)]
    files = ["in/b.png", "in/below/a.png", "in/c.jfif", "in/d", "in/notes.txt", "c.png", "c.png", "none.png"]
    assert [row[0] for row in rows[1:]] == [f"{tmp_path}/{name}" for name in files]
    assert [row[1] for row in rows[1:5]] == names and float(rows[1][2]) > 0.5
    assert "image" in rows[5][3]
    assert rows[8][3].startswith("cannot be read: No such file")
    assert "error: 2 of 8 images could not be used" in found.stderr
    assert "4 files were left out by their names, as sharding does: " in found.stderr and "._b.png" in found.stderr


def test_a_folder_of_nothing_but_what_sharding_leaves_out(folder: Path, packages: Path, tmp_path: Path) -> None:
    (tmp_path / ".hidden" / "in").mkdir(parents=True)
    (tmp_path / ".hidden" / "in" / ".DS_Store").touch()
    found = run_alone(folder, tmp_path / ".hidden" / "in", packages=packages)
    assert found.returncode == 2 and "in holds no images" in found.stderr and ".DS_Store" in found.stderr
    assert {name.encode() for name in predict.IGNORED_NAMES} == IGNORED_NAMES
    for name in ("gs://b/.x/in/", "./in", "in/", "."):
        files = [f"{name.rstrip('/')}/a" if "://" in name else str(Path(name, "a"))]
        assert predict.choose_images([*files, files[0][:-1] + "._a"], name) == (files, [files[0][:-1] + "._a"])


class KServe(BaseHTTPRequestHandler):
    """Speaks KServe's protocol v2 and runs the ONNX file.

    It proves that the program keeps to the protocol as its specification has it; no Triton has answered.
    """

    def do_GET(self) -> None:
        if self.server.content is not None:
            self.wfile.write(self.server.content)
        else:
            self.answer(json.dumps(self.server.said).encode() if self.path == "/v2/models/colours" else None)

    def do_POST(self) -> None:
        assert self.path == "/v2/models/colours/infer"
        content = self.rfile.read(int(self.headers["Content-Length"]))
        header = int(self.headers["Inference-Header-Content-Length"])
        asked = json.loads(content[:header])
        (given,), (wanted,) = asked["inputs"], asked["outputs"]
        assert (given["name"], given["datatype"], wanted["name"]) == ("images", "FP32", "logits")
        assert len(content) - header == given["parameters"]["binary_data_size"]
        images = np.frombuffer(content[header:], np.float32).reshape(given["shape"])
        logits = self.server.run({"images": images})["logits"]
        said: dict[str, Any] = {"name": "logits", "datatype": "FP32", "shape": list(logits.shape)}
        self.server.batches.append(len(images))
        if self.server.binary:
            body = logits.tobytes()
            said["parameters"] = {"binary_data_size": len(body)}
            self.answer(json.dumps({"outputs": [said]}).encode(), body)
        else:
            self.answer(json.dumps({"outputs": [{**said, "data": logits.ravel().tolist()}]}).encode())

    def answer(self, header: bytes | None, body: bytes = b"") -> None:
        self.send_response(404 if header is None else 200)
        content = b'{"error": "unknown model"}' if header is None else header + body
        self.send_header("Content-Length", str(len(content)))
        if body:
            self.send_header("Inference-Header-Content-Length", str(len(content) - len(body)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(folder: Path) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), KServe) as server:
        _, server.run = open_folder(folder)
        server.batches, server.binary, server.content = [], True, None
        server.said = {
            "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 6]}],
        }
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("binary", [True, False])
def test_a_server_answers_as_the_graph_does(
    folder: Path, files: list[Path], packages: Path, server: Any, binary: bool
) -> None:
    server.binary = binary
    url = f"http://127.0.0.1:{server.server_port}/v2/models/colours"
    found = run_alone(folder, *files[:7], "--json", f"--url={url}", packages=packages)
    own = run_alone(folder, *files[:7], "--json", packages=packages)
    assert (found.returncode, found.stdout) == (0, own.stdout)
    assert server.batches == [5, 2]
    assert found.stderr == "['PIL', 'numpy', 'reading', 'runtimes', 'serving']\n"


def test_a_server_with_another_model_is_refused(folder: Path, files: list[Path], packages: Path, server: Any) -> None:
    url = f"http://127.0.0.1:{server.server_port}/v2/models"
    found = run_alone(folder, files[0], f"--url={url}/other", packages=packages)
    assert (found.returncode, found.stdout) == (2, "")
    assert '/v2/models/other does not answer: 404: {"error": "unknown model"}' in found.stderr
    server.said["inputs"][0]["shape"][-1] = SIZE + 1
    found = run_alone(folder, files[0], f"--url={url}/colours", packages=packages)
    assert found.returncode == 2
    assert "the export's files say images float32 [None, 3, 12, 12] and logits" in found.stderr


@pytest.mark.parametrize("url", ["server:8000", "http://127.0.0.1:port"])
def test_an_address_that_is_none_is_refused(folder: Path, url: str) -> None:
    classifier, _ = open_folder(folder)
    with pytest.raises(runtimes.BadInput, match="allowed: http://HOST:PORT"):
        runtimes.open_server(f"{url}/v2/models/colours", classifier.graph)


@pytest.mark.parametrize(
    "content",
    [b"no HTTP\n", *(b"HTTP/1.0 200 OK\r\n\r\n" + body for body in (b"<html>", b'{"inputs": [{}]}'))],
)
def test_a_server_of_another_protocol_is_refused(folder: Path, server: Any, content: bytes) -> None:
    server.content, (classifier, _) = content, open_folder(folder)
    with pytest.raises(runtimes.BadInput, match="gives no answer that can be read"):
        runtimes.open_server(f"http://127.0.0.1:{server.server_port}/v2/models/colours", classifier.graph)


@pytest.mark.parametrize("missing", ["numpy", "PIL", "onnxruntime"])
def test_a_package_that_is_missing_is_named(
    folder: Path, files: list[Path], packages: Path, tmp_path: Path, missing: str
) -> None:
    for path in packages.iterdir():
        if path.name != missing:
            (tmp_path / path.name).symlink_to(path)
    found = run_alone(folder, files[0], packages=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "Traceback" not in found.stderr
    name = {"PIL": "Pillow"}.get(missing, missing)
    assert name in found.stderr.partition("allowed:")[0]
    assert "-m pip install" in found.stderr.partition("to do:")[2]


@pytest.mark.parametrize(
    ("level", "expected"),
    [("2", "DISABLE_ALL"), ("0", "ENABLE_ALL"), ("7", "ENABLE_ALL")],
)
def test_a_graph_is_optimised_as_its_configuration_says(tmp_path: Path, level: str, expected: str) -> None:
    model = tmp_path / "triton" / "m" / "1" / "model.onnx"
    assert runtimes.graph_level(model) == "ORT_DISABLE_ALL"
    model.parent.mkdir(parents=True)
    (model.parent.parent / "config.pbtxt").write_text(f"optimization {{\n  graph {{\n    level: {level}\n  }}\n}}\n")
    assert expected in runtimes.graph_level(model)
    (model.parent.parent / "config.pbtxt").write_text("max_batch_size: 8\n")
    assert runtimes.graph_level(model) == "ORT_ENABLE_ALL"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (save(Image.fromarray(NOISE[..., 0].astype(np.float32)), "TIFF"), "floating-point"),
        (save(Image.fromarray(NOISE[..., 0].astype(np.int32) * 1000), "TIFF"), "32-bit"),
        (b"P6 40000 40000 255\n" + bytes(100), "40000 x 40000 pixels are more than the limit"),
    ],
)
def test_images_without_agreed_pixels_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(serving.BadSample, match=words):
        predict.decode(content, None, 10**8)
