# The tasks list-source, shard and record of the pipeline, which names their command (python -m components.entry), and the
# workers of Dataflow, which start by Beam's boot program.
# Context: the repository, as `shardline images build` stages it.
ARG BEAM=2.77.0
FROM apache/beam_python3.11_sdk:${BEAM} AS beam

FROM python:3.11-slim-bookworm
COPY --from=beam /opt/apache/beam /opt/apache/beam

WORKDIR /opt/shardline
COPY pyproject.toml README.md LICENSE ./
COPY constraints/constraints.txt constraints/
COPY contracts contracts
COPY pages pages
COPY records records
COPY sharding sharding
COPY trainer trainer
COPY components components
COPY pipelines pipelines
COPY rehearsal rehearsal
COPY inspection inspection
COPY data_tools data_tools
RUN python -m pip install --no-cache-dir --constraint constraints/constraints.txt ".[shard,gcp]" \
    && python -c "import apache_beam, os; assert apache_beam.__version__ == '2.77.0', apache_beam.__version__"

# Beam would make an environment of its own at every start, in a folder that only root may write.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
ARG USER=root
RUN useradd --uid 1042 --create-home shardline
USER ${USER}
WORKDIR /home/shardline
ENTRYPOINT ["/opt/apache/beam/boot"]
