// headway-envoy serves Envoy's rate limit service under the limits of a Redis, which it shares with all workers.
//
//	headway-envoy -redis redis://10.0.0.5:6379/0 -limits limits.yaml -listen 127.0.0.1:8081
//
// Beyond the loopback it needs -clients, as worker serve does.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/headway-go/headway/internal/redisopen"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/throttle/serve"
	"github.com/headway-go/headway/throttle/serve/envoy"
	"github.com/headway-go/headway/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "headway-envoy:", strings.TrimPrefix(err.Error(), "worker: "))
		stop()
		os.Exit(1)
	}
}

type options struct{ redis, limits, listen, clients, cert, key, clientCA, app string }

// run serves until ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) error {
	var o options
	fs := flag.NewFlagSet("headway-envoy", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // an error of the flags is printed as others are
	fs.StringVar(&o.redis, "redis", "", "`URL` of Redis, as of worker. Default: REDIS_URL, else redis://127.0.0.1:6379/0")
	fs.StringVar(&o.limits, "limits", "", "limits.yaml `FILE`, as of worker. Without it the limits in Redis apply")
	fs.StringVar(&o.listen, "listen", "127.0.0.1:8081", "serve gRPC on `ADDR`")
	fs.StringVar(&o.clients, "clients", "", "`FILE` of the programs that may ask, as of worker serve")
	fs.StringVar(&o.cert, "tls-cert", "", "`FILE` with the certificate of this server")
	fs.StringVar(&o.key, "tls-key", "", "`FILE` with its key")
	fs.StringVar(&o.clientCA, "client-ca", "", "`FILE` with the authorities of the certificates that -clients names")
	fs.StringVar(&o.app, "app", "envoy", "`NAME` of this application in the usage, and in the apps of limits.yaml")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(stderr)
		fs.Usage()
		return nil
	case err != nil:
		return fmt.Errorf("%w; headway-envoy -h lists the flags", err)
	case fs.NArg() > 0:
		return fmt.Errorf("%q is no flag; headway-envoy -h lists them", fs.Arg(0))
	}
	o.redis = cmp.Or(o.redis, getenv("REDIS_URL"), "redis://127.0.0.1:6379/0") // not as the flag's default, which -h prints with its password
	return o.serve(ctx, slog.New(slog.NewTextHandler(stderr, nil)))
}

// decidedAtOnce is how many calls to Redis may be under way: decisions share theirs, and what is given back does not.
const decidedAtOnce = 48

// unused bytes are never touched: see cmd/worker/serve.go, which has as many.
const unused = 32 << 20

func (o options) serve(ctx context.Context, log *slog.Logger) error {
	defer runtime.KeepAlive(make([]byte, unused))
	options, certificate, err := o.transport()
	if err != nil {
		return err
	}
	if certificate != nil {
		go certificate.Follow(ctx, log)
	}
	var clients *serve.Clients
	if o.clients != "" {
		if clients, err = serve.LoadClients(o.clients); err != nil {
			return err
		}
		go clients.Follow(ctx, log)
	} else if host, _, err := net.SplitHostPort(o.listen); err != nil || host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return fmt.Errorf("-listen %s can be reached by other machines, and -clients does not say who may ask; try -clients clients.yaml, or -listen 127.0.0.1:8081", o.listen)
	}
	file, err := limitsfile.Read(ctx, o.limits)
	if err != nil {
		return err
	}
	redisopen.RouteLog(log)
	rdb, err := redisopen.OpenFor(ctx, o.redis, decidedAtOnce)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	host, _ := os.Hostname()           // for the history alone
	limits, err := worker.New(rdb, worker.Config{
		File: file, App: o.app, By: "headway-envoy on " + cmp.Or(host, "unknown"), Summary: -1, NoMetrics: true, Logger: log,
		ExplainRedis: func(err error) error { return redisopen.Explain(err, o.redis) },
	})
	if err != nil {
		return err
	}
	service, err := envoy.New(envoy.Config{Limiter: limits.Limiter(), Clients: clients})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	if err := limits.Begin(ctx); err != nil {
		_ = listener.Close()
		return err
	}
	defer limits.End()
	go limits.Limiter().Heartbeat(ctx)
	server := grpc.NewServer(options...)
	ratelimitv3.RegisterRateLimitServiceServer(server, service)
	defer context.AfterFunc(ctx, server.GracefulStop)()
	log.InfoContext(ctx, "ready", "addr", listener.Addr().String(), "clients", o.clients != "", "tls", o.cert != "")
	return server.Serve(listener)
}

// maxRequest bounds a request: 64 descriptors of some entries.
const maxRequest = 256 << 10

// transport reads the files of TLS. The certificate is nil without them.
func (o options) transport() ([]grpc.ServerOption, *serve.Certificate, error) {
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(1000)}
	if o.cert == "" && o.key == "" && o.clientCA == "" {
		return options, nil, nil
	}
	certificate, err := serve.LoadCertificate(o.cert, o.key)
	if err != nil {
		return nil, nil, fmt.Errorf("-tls-cert and -tls-key: %w", err)
	}
	config, err := certificate.Config(o.clientCA)
	if err != nil {
		return nil, nil, fmt.Errorf("-client-ca: %w", err)
	}
	return append(options, grpc.Creds(credentials.NewTLS(config))), certificate, nil
}
