# The daemon on a CPU, for Linux: `docker compose --profile cpu up`. A container has no Metal, so on a Mac this is to try
# things with: the daemon that is meant to be fast runs on the machine itself.

FROM python:3.13.13-slim-bookworm@sha256:355bfa66770995d7e9a0da4b3473b44d0cb451f6b56f5615ad9c39e3c4eca03f AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/draftd
WORKDIR /src
COPY . .
RUN /opt/draftd/bin/pip install -c constraints.txt .

FROM python:3.13.13-slim-bookworm@sha256:355bfa66770995d7e9a0da4b3473b44d0cb451f6b56f5615ad9c39e3c4eca03f
# Without OpenBLAS the Linux wheel of MLX multiplies some fifty times slower.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libopenblas0-pthread \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/draftd /opt/draftd
# A volume that is mounted here takes over whose folder it is.
RUN install --directory --owner=10001 --group=10001 /var/lib/draftd
ENV HOME=/var/lib/draftd PATH=/opt/draftd/bin:$PATH PYTHONDONTWRITEBYTECODE=1 XDG_STATE_HOME=/var/lib/draftd
USER 10001:10001
WORKDIR /var/lib/draftd
ENTRYPOINT ["draftd"]
CMD ["serve"]
