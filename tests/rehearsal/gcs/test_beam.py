"""Beam's own file system against the server, unmodified."""

import pytest

from rehearsal.gcs import BucketServer

NUM_OBJECTS = 2000


# A hang guard, not a timing: 25 s on two free cores, most of it Beam, which makes a client for every file.
@pytest.mark.timeout(280)
@pytest.mark.slow
def test_beam_writes_lists_renames_and_deletes_2000_objects(bucket_server: BucketServer) -> None:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.io.gcp import gcsfilesystem
    from apache_beam.options.pipeline_options import PipelineOptions

    options = PipelineOptions(["--project=p", "--no_auth"])
    FileSystems.set_options(options)
    files = gcsfilesystem.GCSFileSystem(options)
    names = [f"gs://bucket-1/temp/{number:04d}" for number in range(NUM_OBJECTS)]
    for name in names:
        with files.create(name) as stream:
            stream.write(name.encode())
    found = files.match(["gs://bucket-1/temp/*"])[0].metadata_list
    assert [entry.path for entry in found] == names
    assert {entry.size_in_bytes for entry in found} == {len(names[0])}

    renamed = [name.replace("/temp/", "/final/") for name in names]
    files.rename(names, renamed)
    assert files.match(["gs://bucket-1/temp/*"])[0].metadata_list == []
    with files.open(renamed[7]) as stream:
        assert stream.read() == names[7].encode()
    assert files.exists(renamed[-1])
    assert files.checksum(renamed[0])

    # One by one Beam makes three requests an object, by folder one batch a hundred.
    files.delete(renamed[:50])
    files.delete(["gs://bucket-1/final/"])
    assert files.match(["gs://bucket-1/**"])[0].metadata_list == []
    assert bucket_server.access_log.entries(operation="batch")


def test_a_pipeline_reads_and_writes(bucket_server: BucketServer) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    options = PipelineOptions(["--runner=FnApiRunner", "--project=p", "--no_auth"])
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(["one", "two", "three"])
            | beam.io.WriteToText("gs://bucket-1/out/part", num_shards=2, file_name_suffix=".txt")
        )
    names = [record.name for record in bucket_server.objects.rows("bucket-1", "", "", 100)]
    assert names == ["out/part-00000-of-00002.txt", "out/part-00001-of-00002.txt"]
    lines: list[str] = []
    for name in names:
        lines += (bucket_server.root / "bucket-1" / name).read_text().split()
    assert sorted(lines) == ["one", "three", "two"]
