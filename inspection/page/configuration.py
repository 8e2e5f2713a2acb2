"""The configuration as it was resolved: defaults, file and overrides."""

from __future__ import annotations

import json

import yaml

from inspection.page.subject import Subject
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.run.configuration import ConfigurationSection

TITLE = "Configuration"


def configuration(subject: Subject) -> Html:
    """Return the configuration as YAML."""
    config = subject.view.config
    if not config:
        why = "The configuration is not known: the run's record could not be read; see “Completeness”."
        return render(AbsentSection("configuration", TITLE, why))
    # YAML of a very large configuration would take minutes, and be cut in any case.
    plain = json.dumps(config, ensure_ascii=False, indent=1, default=str)
    is_large = len(plain) > 2 * subject.limits.config
    words = plain if is_large else yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100)
    cut = shorten(words, subject.limits.config)
    return render(ConfigurationSection(TITLE, cut, len(words) - len(cut)))
