"""The configuration as it was resolved: defaults, file and overrides."""

from __future__ import annotations

import json

import yaml

from inspection.page.subject import Subject
from pages.markup import Html, element, section, shorten

TITLE = "Configuration"


def configuration(subject: Subject) -> Html:
    """Return the configuration as YAML."""
    config = subject.view.config
    if not config:
        why = "The configuration is not known: the run's record could not be read; see “Completeness”."
        return section("configuration", TITLE, element("p", why, class_="missing block", data_absent="configuration"))
    # YAML of a very large configuration would take minutes, and be cut in any case.
    plain = json.dumps(config, ensure_ascii=False, indent=1, default=str)
    is_large = len(plain) > 2 * subject.limits.config
    words = plain if is_large else yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100)
    cut = shorten(words, subject.limits.config)
    parts = [
        element("p", "As it was resolved: defaults, then the file, then overrides.", class_="note"),
        element(
            "pre",
            element("code", cut),
            class_="scroll yaml",
            tabindex=0,
            role="region",
            aria_label="Configuration as YAML",
        ),
    ]
    if len(cut) < len(words):
        parts.append(element("p", f"{len(words) - len(cut):,} characters are left out here.", class_="note"))
    return section("configuration", TITLE, *parts)
