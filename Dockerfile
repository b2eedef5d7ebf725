# docker build -t cota .
#
# Linked against glibc, of Debian 12 in both stages: what the tests run with, and names are resolved as everywhere
# else. Both images are named by version; where a build must not move, pin them by digest.

# The tag is the channel of rust-toolchain.toml. That file stays outside: it would fetch rustfmt and clippy, too.
FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY src src
# Not built, but named by Cargo.toml.
COPY benches/decide.rs benches/decide.rs
# `dev` is faster to build, for a look.
ARG PROFILE=release
# The lock file decides every version, and the paths are the same in every build.
RUN cargo build --locked --bin cota --profile "$PROFILE"
# `/bin/ratelimit` is where manifests of envoyproxy/ratelimit look.
RUN install -D -m 0555 target/*/cota /image/cota && mkdir /image/bin && ln -s /usr/local/bin/cota /image/bin/ratelimit

# glibc, libgcc and certificates: no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /image/cota /usr/local/bin/cota
COPY --from=build /image/bin/ /bin/
USER 65534:65534
EXPOSE 8080 8081
ENTRYPOINT ["/usr/local/bin/cota"]
CMD ["serve"]
