# The export: torch, ONNX, and TensorRT-RTX for engines of workstations. With --build-arg TENSORRT=11.3.0 the TensorRT of
# a Triton release too, whose plans its tensorrt backend loads: on a machine with a GPU it is the default (docs/export.md).
# Both are proprietary: an image that holds them is for your own registry.
# Context: the repository, as `shardline images build` stages it.
ARG BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime
FROM ${BASE}
# Where the base's Python is the distribution's, pip would refuse to install beside it.
ENV PIP_BREAK_SYSTEM_PACKAGES=1

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
ARG TENSORRT=
RUN python -m pip install --no-cache-dir --constraint constraints/constraints.txt ".[export,bucket,rtx]" \
    && if [ -n "${TENSORRT}" ]; then python -m pip install --no-cache-dir "tensorrt==${TENSORRT}.*"; fi \
    && python -c "import sys, torch; assert sys.version_info >= (3, 11) and torch.version.cuda, (sys.version, torch.__version__)"

# What own code imports (code.requirements); the constraints keep torch and the rest as they are.
COPY docker/own-requirements.txt ./
RUN python -m pip install --no-cache-dir --constraint constraints/constraints.txt --requirement own-requirements.txt

ENV PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
ARG USER=shardline
RUN useradd --uid 1042 --create-home shardline
USER ${USER}
WORKDIR /home/shardline
ENTRYPOINT ["python", "-m", "trainer.export.task"]
