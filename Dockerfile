# The server, in two stages: one that installs it, one that runs it.
#     docker build -t pressure-server . && docker run --rm -p 127.0.0.1:4000:4000 -v queues:/data pressure-server
# deploy/README.md says more.

FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /venv
COPY pyproject.toml README.md LICENSE ./
COPY pressure_server pressure_server
COPY handlers handlers
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check . \
    && /venv/bin/pressure-server --version


FROM python:3.13-slim
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
EXPOSE 4000 11211 11300
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["pressure-server", "ping"]
CMD ["pressure-server", "serve"]
