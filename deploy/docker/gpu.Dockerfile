# The tasks profile, train, export and register (python -m components.entry NAME), on NVIDIA GPUs.
# Context: the repository, of which `shardline images build` sends what is copied here.
# CUDA=cu126 has code for GPUs up to Hopper, cu130 for Turing to Blackwell. TENSORRT= leaves TensorRT out, whose plans
# Triton's tensorrt backend loads (docs/decisions/0023-tensorrt-of-the-export-image.md); RTX=rtx adds TensorRT-RTX.
# Both are proprietary: an image that holds them is for your own registry.
# The wheels bring CUDA; the driver is the machine's, and no library of CUDA's compat package stands before it.
FROM python:3.11-slim-bookworm
# torch.compile builds its kernels' launchers when it runs.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

ARG CUDA=cu126
ARG TORCH=2.13.0
RUN python -m pip install --no-cache-dir --index-url https://download.pytorch.org/whl/${CUDA} "torch==${TORCH}"

WORKDIR /opt/shardline
COPY pyproject.toml deploy/docker/requirements.py constraints/constraints.txt ./
# The constraints name this torch: were another installed, it would be the CPU's or of another CUDA.
RUN python requirements.py export bucket vertex > requirements.txt \
    && python -m pip install --no-cache-dir --constraint constraints.txt --requirement requirements.txt \
    && python -c "import torch; assert torch.version.cuda, torch.__version__"
ARG TENSORRT=11.3.0
ARG RTX=
# cu126 and cu130 end in the minor version; TensorRT's wheels are of cu12 and cu13.
RUN if [ -n "${TENSORRT}" ]; then python -m pip install --no-cache-dir --constraint constraints.txt "tensorrt_${CUDA%?}==${TENSORRT}.*"; fi \
    && if [ -n "${RTX}" ]; then python requirements.py rtx > rtx.txt && python -m pip install --no-cache-dir --constraint constraints.txt --requirement rtx.txt; fi
# What own code imports (code.requirements); the constraints keep torch and the rest as they are.
COPY deploy/docker/own-requirements.txt ./
RUN python -m pip install --no-cache-dir --constraint constraints.txt --requirement own-requirements.txt

# Sources come after all that they need. The build of the package asks for the two texts, and uses neither.
COPY contracts contracts
COPY records records
COPY trainer trainer
COPY inspection inspection
COPY components components
RUN touch README.md LICENSE && python -m pip install --no-cache-dir --no-deps .

# Vertex AI and Kubernetes Engine mount the driver's libraries and programs there.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    PATH=/usr/local/nvidia/bin:${PATH} \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
WORKDIR /root
ENTRYPOINT ["python", "-m", "components.entry"]
