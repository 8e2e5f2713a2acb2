"""The configuration as it was resolved, and what could not be read of a run."""

from __future__ import annotations

import json

import yaml

from contracts.yaml_text import Dumper
from inspection.page.subject import Subject, left_out
from pages.markup import Html, shorten
from pages.parts import Code, Fold, Table, Text, absent, note, section


def configuration(subject: Subject) -> Html:
    """Return the configuration as YAML: defaults, file and overrides."""
    name, title, config = "configuration", "Configuration", subject.view.config
    if not config:
        why = "The configuration is not known: the run's record could not be read; see “Completeness”."
        return section(name, title, absent(name, why))
    # YAML of a very large configuration would take minutes, and be cut in any case.
    plain = json.dumps(config, ensure_ascii=False, indent=1, default=str)
    is_large = len(plain) > 2 * subject.limits.config
    words = plain if is_large else yaml.dump(config, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    cut = shorten(words, subject.limits.config)
    more = len(words) - len(cut)
    return section(
        name,
        title,
        Text("As it was resolved: defaults, then the file, then overrides.", "note"),
        Fold("All keys", [Code(cut, "Configuration as YAML")], "configuration-yaml"),
        note(f"{more:,} characters are left out here." if more else ""),
    )


def missing(subject: Subject) -> Html:
    """Return what could not be read, and why."""
    name, title, found = "missing", "Completeness", subject.view.missing
    if not found:
        return section(name, title, absent(name, "All that this run has left so far could be read.", calm=True))
    shown = found[: subject.limits.rows * 2]
    rows = [(subject.name(each.what), subject.reason(each.reason)) for each in shown]
    more = left_out(len(shown), len(found), "of them")
    return section(name, title, Table("missing-list", "What could not be read", ("What", "Why"), rows, 2, more))
