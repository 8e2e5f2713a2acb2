# Profiling and training on NVIDIA GPUs, by PyTorch's wheels for CUDA.
# Context: the repository, as `shardline images build` stages it.
# CUDA=cu126 has code for GPUs up to Hopper, cu130 for Turing to Blackwell: `shardline images build` takes what the
# machine needs.
# The wheels bring CUDA; the driver is the machine's, and no library of CUDA's compat package stands before it.
FROM python:3.11-slim-bookworm
# torch.compile builds its kernels' launchers when it runs.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

ARG CUDA=cu126
ARG TORCH=2.13.0
RUN python -m pip install --no-cache-dir --index-url https://download.pytorch.org/whl/${CUDA} "torch==${TORCH}"

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
# The constraints name the base's torch: were another installed, it would be the CPU's or of another CUDA.
RUN python -m pip install --no-cache-dir --constraint constraints/constraints.txt ".[train,bucket]" \
    && python -c "import sys, torch; assert sys.version_info >= (3, 11) and torch.version.cuda, (sys.version, torch.__version__)"

# What own code imports (code.requirements); the constraints keep torch and the rest as they are.
COPY docker/own-requirements.txt ./
RUN python -m pip install --no-cache-dir --constraint constraints/constraints.txt --requirement own-requirements.txt

# Vertex AI and Kubernetes Engine mount the driver's libraries and programs there.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    PATH=/usr/local/nvidia/bin:${PATH} \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
ARG USER=root
RUN useradd --uid 1042 --create-home shardline
USER ${USER}
WORKDIR /home/shardline
ENTRYPOINT ["python", "-m", "trainer.task"]
