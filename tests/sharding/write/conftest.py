"""A small real source and the job of its training shard."""

import dataclasses

import pytest

from contracts import storage
from contracts.config import ShardingSection
from sharding.job import Job
from sharding.sources import list_source


@pytest.fixture
def make_job(source, tmp_path):
    """Return a function that gives a job on `source`, and the references of its training split."""

    def make(output="out", **fields):
        listing = list_source(ShardingSection(source=str(source)), tmp_path)
        job = Job("f" * 16, listing.uri, storage.normalise(tmp_path / output), listing.classes, "webdataset", seed=3)
        references = [one for one in listing.references() if one.split == 0]
        return dataclasses.replace(job, **fields), references

    return make
