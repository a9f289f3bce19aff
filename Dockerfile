# The server, in two stages: one that installs it, one that runs it.
#     docker build -t pressure-server . && docker run --rm -p 127.0.0.1:4000:4000 -v queues:/data pressure-server
# deploy/README.md says more.

# To pin the base images by their digests: --build-arg PYTHON=python:3.13-slim@sha256:...
ARG PYTHON=python:3.13-slim
# The same with a C compiler.
ARG BUILDER=python:3.13

FROM ${BUILDER} AS build
WORKDIR /src
# Everything that is downloaded has the version and the hash of these files; `make lock` writes them.
COPY deploy/image/requirements.txt deploy/image/build.txt ./
# pip is not needed in /venv: the one of the tools installs there, too.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv --without-pip /venv && python -m venv tools \
    && tools/bin/pip install --no-compile --require-hashes -r requirements.txt -r build.txt \
    && tools/bin/pip --python /venv/bin/python install --require-hashes -r requirements.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY pressure_server pressure_server
COPY handlers handlers
# The commit that the image is made of: --build-arg REVISION=$(git rev-parse HEAD). Empty: the release.
ARG REVISION=unknown
# /venv/sbom.cdx.json lists what the image has of Python.
RUN printf %.8s "${REVISION}" > pressure_server/commit.txt \
    && PRESSURE_COMPILE=1 tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && tools/bin/pip --python /venv/bin/python install --no-deps --no-index dist/*.whl \
    && tools/bin/pip --python /venv/bin/python check \
    && tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
        --output-format JSON --output-file /venv/sbom.cdx.json /venv/bin/python \
    && /venv/bin/pressure-server --version


FROM ${PYTHON}
ARG PYTHON
ARG REVISION=unknown
LABEL org.opencontainers.image.title=pressure-server \
    org.opencontainers.image.description="Bounded, reliable FIFO queues for Redis, memcached and beanstalk clients" \
    org.opencontainers.image.version=1.0.0rc1 \
    org.opencontainers.image.revision=${REVISION} \
    org.opencontainers.image.licenses=MIT \
    org.opencontainers.image.base.name=docker.io/library/${PYTHON}
# By number, so that Kubernetes can see that it is not root.
RUN groupadd --gid 4000 pressure \
    && useradd --uid 4000 --gid 4000 --no-create-home --home-dir /data --shell /usr/sbin/nologin pressure \
    && install --directory --owner=4000 --group=4000 --mode=700 /data
COPY --from=build /venv /venv

# A container's port can be published only from 0.0.0.0; nobody reaches it who is not let in by -p or a network,
# so protected mode, which would refuse them all, is off, as in the image of Redis.
ENV PATH=/venv/bin:$PATH \
    PRESSURE_LISTEN=resp://0.0.0.0:4000 \
    PRESSURE_PROTECTED_MODE=off \
    PRESSURE_DATA_DIR=/data
USER 4000:4000
VOLUME /data
EXPOSE 4000 4080 11211 11300
STOPSIGNAL SIGTERM
# The server is process 1. What it listens on may be an option of the container, which only its command line has.
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["pressure-server", "ping", "--pid", "1"]
# What follows the name of the image are options or a command: docker run pressure-server --listen resp://0.0.0.0:4001
ENTRYPOINT ["pressure-server"]
CMD ["serve"]
