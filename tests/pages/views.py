"""A view of every template with all that it can show, and one with nothing."""

from __future__ import annotations

from pages.document import Document
from pages.markup import Html
from pages.rendering import View
from tests.pages import views_export, views_profile, views_run, views_stage

EXAMPLES: dict[type[View], tuple[View, View]] = {
    **views_export.EXAMPLES,
    **views_profile.EXAMPLES,
    **views_run.EXAMPLES,
    **views_stage.EXAMPLES,
    Document: (
        Document(
            "Run 1",
            Html("<main>all</main>"),
            policy="default-src 'none'",
            style=Html("p{margin:0}"),
            script=Html("0"),
        ),
        Document("", Html("")),
    ),
}
