# Both programs, each in an image of its own that holds nothing else:
#
#	docker build --target worker -t headway-worker .
#	docker build --target enqueue -t headway-enqueue .
#
# docs/operations.md says how to run them.

FROM golang:1.26.8-trixie AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
# Go reads the version from .git, and calls it dirty where a file that git knows is missing.
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /out/ ./cmd/worker ./cmd/enqueue

# The programs bring the time zones with them. They write no file.
FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /LICENSE
USER 65532:65532

FROM base AS enqueue
COPY --from=build /out/enqueue /usr/local/bin/headway-enqueue
ENTRYPOINT ["/usr/local/bin/headway-enqueue"]

FROM base AS worker
COPY --from=build /out/worker /usr/local/bin/headway-worker
ENTRYPOINT ["/usr/local/bin/headway-worker"]
