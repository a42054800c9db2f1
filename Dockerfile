# One image for the Prefect server, its workers and MLflow; TORCH chooses PyTorch's build: cpu, or cu130 for GPUs.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS build
ARG TORCH=cpu
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir uv==0.13.9
WORKDIR /fedweave
# The dependencies, in a layer of their own that a change of the code leaves alone.
COPY pyproject.toml constraints.txt ./
RUN mkdir -p src/fedweave pipelines studies \
    && printf '__version__ = "0"\n' > src/fedweave/__init__.py \
    && touch README.md pipelines/__init__.py dvc.yaml prefect.yaml .env studies/base.yaml \
    && /opt/venv/bin/uv pip install --no-cache --python /opt/venv/bin/python --torch-backend "${TORCH}" \
       --constraint constraints.txt '.[pipeline,datasets,postgres]'
COPY . .
RUN /opt/venv/bin/uv pip install --no-cache --python /opt/venv/bin/python --no-deps --reinstall-package fedweave --editable .

FROM python:${PYTHON}
RUN apt-get update && apt-get install --yes --no-install-recommends git g++ libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 fedweave && install --directory --owner=fedweave --group=fedweave /fedweave
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=fedweave:fedweave /fedweave /fedweave
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER fedweave
WORKDIR /fedweave
# The image carries no repository: DVC works without one. A volume takes its owner from the folder that is here.
RUN dvc config --local core.no_scm true && mkdir -p data results records .prefect .fedweave .dvc/cache
HEALTHCHECK --interval=30s --timeout=30s --start-period=30s CMD ["python", "-c", "import fedweave.pipelines"]
CMD ["dvc", "repro"]
