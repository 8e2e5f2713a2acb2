# Profiling and training on NVIDIA GPUs: PyTorch's own CUDA image, whose torch is kept.
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
# The constraints name the base's torch: were another installed, it would be the CPU's or of another CUDA.
RUN python -m pip install --no-cache-dir --constraint constraints/constraints.txt ".[train,bucket]" \
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
ENTRYPOINT ["python", "-m", "trainer.task"]
