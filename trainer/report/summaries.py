"""Pictures with a description, and texts, as messages that TensorBoard shows."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from PIL import Image

from trainer.report.drawing import png, printable


def picture(tag: str, image: Image.Image, description: str) -> Any:
    """Return a summary with a picture.

    Args:
        tag: Its name.
        image: RGB.
        description: Markdown, shown beside it; what is not ours in it must come out of `listed`.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[import-untyped]

    metadata = SummaryMetadata(
        summary_description=description, plugin_data=SummaryMetadata.PluginData(plugin_name="images")
    )
    content = Summary.Image(height=image.height, width=image.width, colorspace=3, encoded_image_string=png(image))
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, image=content)])


def text(tag: str, markdown: str) -> Any:
    """Return a summary with a text.

    Args:
        tag: Its name.
        markdown: What is not ours in it must come out of `listed`.
    """
    from torch.utils.tensorboard.summary import text as make

    return make(tag, markdown)  # type: ignore[no-untyped-call]


def listed(lines: Iterable[str]) -> str:
    """Return lines as a numbered list of Markdown, in which names mean nothing but themselves."""
    return "\n".join(f"{number}. <code>{_plain(line)}</code>" for number, line in enumerate(lines, start=1))


def _plain(text: str) -> str:
    escaped = html.escape(printable(text))
    return "".join(
        f"&#{ord(character)};" if character in "\\`*_{}[]()#+-!|~:/@." else character for character in escaped
    )
