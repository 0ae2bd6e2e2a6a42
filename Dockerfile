# The image of a node. It works with a read-only root: it writes to /tmp, and to /var/lib/bae only with SQLite.
#
#   docker build --tag bae .
#
# compiles the program. `--target run` takes one that is there already, at the path PROGRAM of the build context, and compiles
# nothing; the program must not need a newer C library than Debian 12 has:
#
#   docker build --tag bae --target run --build-arg PROGRAM=baesrv --file Dockerfile FOLDER-WITH-BAESRV
#
# Stages that a target does not need come after it, for builders that run all stages before it. SYSTEM is what the image is made
# on; one that has tini and ca-certificates already needs no network.
ARG SYSTEM=debian:bookworm-slim
ARG RUST=rust:1.95.0-bookworm

FROM ${SYSTEM} AS system
# Authorities for TLS; tini passes signals on and waits for what MCP servers leave behind.
RUN test -x /usr/bin/tini -a -d /etc/ssl/certs \
    || { apt-get update && apt-get install --yes --no-install-recommends ca-certificates tini && rm -rf /var/lib/apt/lists/*; }
RUN mkdir -p /var/lib/bae && chown 10001:10001 /var/lib/bae
USER 10001:10001
WORKDIR /var/lib/bae
ENV HOME=/tmp BAE_LOG_FORMAT=json
EXPOSE 8080
ENTRYPOINT ["/usr/bin/tini", "--", "baesrv"]
CMD ["serve"]

FROM system AS run
ARG PROGRAM=target/release/baesrv
COPY ${PROGRAM} /usr/local/bin/baesrv

FROM ${RUST} AS build
WORKDIR /src
COPY . .
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo
RUN cargo build --release --locked --package node && mv target/release/baesrv /baesrv

FROM system
COPY --from=build /baesrv /usr/local/bin/baesrv
