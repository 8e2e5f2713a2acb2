# The tasks list-source, shard and record of the pipeline, which names their command (python -m components.entry NAME),
# and the workers of Dataflow, which start by Beam's boot program.
# Context: the repository, of which `shardline images build` sends what is copied here.
ARG BEAM=2.77.0
FROM apache/beam_python3.11_sdk:${BEAM} AS beam

FROM python:3.11-slim-bookworm
COPY --from=beam /opt/apache/beam /opt/apache/beam
WORKDIR /opt/shardline
COPY pyproject.toml deploy/docker/requirements.py constraints/constraints.txt ./
RUN python requirements.py shard gcp > requirements.txt \
    && python -m pip install --no-cache-dir --constraint constraints.txt --requirement requirements.txt \
    && python -c "import apache_beam; assert apache_beam.__version__ == '2.77.0', apache_beam.__version__"

# Sources come after all that they need. The build of the package asks for the two texts, and uses neither.
COPY contracts contracts
COPY records records
COPY sharding sharding
COPY inspection inspection
COPY components components
RUN touch README.md LICENSE && python -m pip install --no-cache-dir --no-deps .

# Beam would make an environment of its own at every start.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
WORKDIR /root
ENTRYPOINT ["/opt/apache/beam/boot"]
