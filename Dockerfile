# The base is any Debian-like image with Python 3.11 or newer and `python3 -m venv`; name yours, best by digest:
#   docker build --build-arg BASE=python:3.13-slim .
ARG BASE=python:3.13-slim

# --- build: what is needed here stays here ---
FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
# The environment of the image has no pip of its own; the builder's installs into it.
RUN python3 -m venv /builder && python3 -m venv --without-pip /opt/loopway
COPY requirements/build.txt requirements/lock.txt requirements/
RUN /builder/bin/pip install --quiet --require-hashes --only-binary :all: -r requirements/build.txt
RUN /builder/bin/pip --python /opt/loopway/bin/python install --quiet --no-compile \
        --require-hashes --only-binary :all: -r requirements/lock.txt
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY src src
COPY docs docs
RUN /builder/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /builder/bin/pip --python /opt/loopway/bin/python install --quiet --no-compile --no-deps --no-index /wheels/*.whl
# Compiled now, since the root file system may be read-only later. The hash is not looked at when a module is imported.
RUN /opt/loopway/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/loopway/lib \
    && /opt/loopway/bin/loopway --version

# --- the image ---
FROM ${BASE}
ARG VERSION=0
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="loopway" \
      org.opencontainers.image.description="An LLM gateway that answers tool calls on the server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/loopway/loopway" \
      org.opencontainers.image.documentation="https://github.com/loopway/loopway/tree/main/docs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=build /opt/loopway /opt/loopway
# /hooks is where hook modules, and what they import, are mounted or copied.
ENV PATH=/opt/loopway/bin:$PATH \
    PYTHONPATH=/hooks \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LOOPWAY_CONFIG=/etc/loopway/loopway.yaml \
    LOOPWAY_HEALTH_URL=http://127.0.0.1:4000/healthz
# A number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /tmp
EXPOSE 4000 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=4s --start-period=30s --retries=3 CMD ["/opt/loopway/bin/python", "-c", \
    "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open(os.environ['LOOPWAY_HEALTH_URL'], timeout=3)"]
# No shell and no init between: the gateway itself gets the signals.
ENTRYPOINT ["/opt/loopway/bin/loopway"]
CMD ["serve", "--host", "0.0.0.0"]
