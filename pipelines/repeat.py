"""The configuration of a run out of its own documents, so that the same can be run again."""

from __future__ import annotations

from contextlib import suppress

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.previous import PREVIOUS, read_previous
from contracts.resolve import parse_config, with_data_date
from inspection.run.find import find_place, read_start
from inspection.run.read import find_folder


def config_of_run(run: str) -> RunConfig:
    """Return the resolved configuration of a run, which has the fingerprints of that run wherever it is run.

    What a line or a day gives a meaning is replaced by what it meant: `{date}` of the source by the day, and
    `model.weights: previous` by the training that was taken.

    Args:
        run: As `inspection.run.find.find_place` takes it.

    Raises:
        ConfigError: There is no such run, its document is damaged, or it is of a release with other keys.
    """
    place = find_place(run)
    start = read_start(place)
    values = start.get("config")
    if not isinstance(values, dict):
        raise ConfigError(
            f"{storage.display(place.start_uri)} names no configuration: it is damaged",
            allowed="a run whose first document can be read",
            todo="take another run of the line: shardline runs LINE",
        )
    config = parse_config(values, where=storage.display(place.start_uri))
    config = with_data_date(config, str(start.get("data_date") or start.get("started_at") or ""))
    if config.model.weights != PREVIOUS:
        return config
    source = read_previous(place.line, place.run_id)
    with suppress(DataError, FileNotFoundError):
        # A finished training that stood for this run's may have started from another one.
        if (folder := find_folder(place, "train")) is not None:
            initial = CheckpointManifest.load(folder).initial
            source = initial.source if initial is not None else None
    model = config.model.model_copy(update={"weights": storage.display(source) if source else ""})
    return config.model_copy(update={"model": model})
