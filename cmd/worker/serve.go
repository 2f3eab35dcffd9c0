package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/limitsfile"
	httpserve "github.com/headway-go/headway/throttle/serve"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker"
)

const serveLong = `Decides over HTTP for programs in any language: they post JSON to /v1/decide, /v1/reserve,
/v1/settle, /v1/refund, /v1/lease, /v1/renew, /v1/release and /v1/report. They share the
limits with all workers. /v1/openapi.yaml describes the calls, /healthz and /metrics this
program. Start as many of it on one Redis as you like.

On this machine everybody may ask. Any address that is not loopback needs -clients.`

// serveCommand is one run of "worker serve".
type serveCommand struct {
	redis, limits, listen, clients, app string
	cert, key, clientCA                 string
	usage                               bool
	level, logFormat                    string

	addr        listenAddr
	certificate *httpserve.Certificate // nil for none
	tls         *tls.Config            // likewise
	logLevel    slog.Level
}

func newServe(p program, getenv func(string) string) *cobra.Command {
	s := &serveCommand{}
	c := &cobra.Command{
		Use: "serve", Short: "Decide over HTTP for programs in any language", Long: serveLong, Args: cli.Args(0, 0),
		Example: `  worker serve -limits limits.yaml
  worker serve -limits limits.yaml -listen 10.0.0.5:9092 -clients clients.yaml -tls-cert cert.pem -tls-key key.pem`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.check(getenv); err != nil {
				return cli.Usage(err)
			}
			log := newLogger(c.ErrOrStderr(), s.logLevel, s.logFormat)
			cli.RouteRedisLog(log)
			if err := s.run(c.Context(), p, log); err != nil && c.Context().Err() == nil {
				return err
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&s.redis, "redis", "", "`URL` of Redis, as of worker. Default: REDIS_URL from the environment, else \"embedded\", a server inside this process")
	fs.StringVar(&s.limits, "limits", "", "limits.yaml `FILE`, as of worker. Without it the limits in Redis apply")
	fs.StringVar(&s.listen, "listen", ":9092", "serve on `ADDR`, on 127.0.0.1 if it names no host")
	fs.StringVar(&s.clients, "clients", "", "`FILE` of the programs that may ask, each with a token or a certificate, and its scopes. It is read again when it changes")
	fs.StringVar(&s.cert, "tls-cert", "", "`FILE` with the certificate of this server, and -tls-key one with its key: serve HTTPS. They are read again when they change")
	fs.StringVar(&s.key, "tls-key", "", "`FILE` with the key of -tls-cert")
	fs.StringVar(&s.clientCA, "client-ca", "", "`FILE` with the authorities of the certificates that -clients names (mTLS)")
	fs.BoolVar(&s.usage, "usage", true, "record in Redis what was spent, for \"worker inspect usage\"")
	fs.StringVar(&s.app, "app", "serve", "`NAME` of this application in that record, and in the apps of limits.yaml")
	logFlags(c, &s.level, &s.logFormat)
	return c
}

// check reads the flags, and the files of TLS.
func (s *serveCommand) check(getenv func(string) string) (err error) {
	if s.logLevel, err = parseLog(s.level, s.logFormat); err != nil {
		return err
	}
	if s.addr, err = parseAddr(s.listen); err != nil {
		return err
	}
	if err := usage.CheckApp(s.app); err != nil {
		return cli.Errorf("-app gateway", "-app: %s", strings.TrimPrefix(err.Error(), "usage: "))
	}
	if s.addr.token = strings.TrimSpace(getenv(tokenVariable)); s.addr.token != "" && len(s.addr.token) < minToken {
		return shortToken(s.addr.token)
	}
	if !s.addr.loopback && s.clients == "" {
		return cli.Errorf("-clients clients.yaml, or -listen :9092 for this machine only", "-listen %s can be reached by other machines, and -clients does not say who may ask", s.listen)
	}
	if !s.addr.loopback && s.addr.token == "" {
		s.addr.token = rand.Text() // nobody has it: /metrics needs one there
	}
	return s.checkTLS()
}

func (s *serveCommand) checkTLS() error {
	switch {
	case (s.cert == "") != (s.key == ""):
		return cli.Errorf("-tls-cert cert.pem -tls-key key.pem", "-tls-cert and -tls-key need each other")
	case s.clientCA != "" && (s.cert == "" || s.clients == ""):
		return cli.Errorf("-client-ca ca.pem -tls-cert cert.pem -tls-key key.pem -clients clients.yaml", "-client-ca needs -tls-cert and -clients")
	case s.cert == "":
		return nil
	}
	var err error
	if s.certificate, err = httpserve.LoadCertificate(s.cert, s.key); err != nil {
		return &cli.Error{What: "-tls-cert and -tls-key: " + strings.TrimPrefix(err.Error(), "tls: "), Try: "files in PEM, of one certificate and its key", Err: err}
	}
	if s.tls, err = s.certificate.Config(s.clientCA); err != nil {
		return &cli.Error{What: "-client-ca: " + err.Error(), Try: "a file of certificates in PEM", Err: err}
	}
	return nil
}

// unused bytes are never touched, so they take no memory, but Go's collector counts them: what each request leaves behind would fill the least
// heap, 4 MiB, dozens of times a second, and each collection delays those that are under way.
const unused = 32 << 20

// run serves until ctx ends.
func (s *serveCommand) run(ctx context.Context, p program, log *slog.Logger) error {
	file, err := limitsfile.Read(ctx, s.limits)
	if err != nil {
		return limitsUnread(s.limits, err)
	}
	defer runtime.KeepAlive(make([]byte, unused))
	var clients *httpserve.Clients
	if s.clients != "" {
		if clients, err = httpserve.LoadClients(s.clients); err != nil {
			return &cli.Error{What: strings.ReplaceAll(err.Error(), "serve: ", ""), Try: "correct " + s.clients + "; worker page token prints a token and its sha256", Err: err}
		}
	}
	rdb, url, closeRedis, err := p.openRedis(ctx, options{redis: cmp.Or(s.redis, "embedded"), concurrency: servedAtOnce}, log)
	if err != nil {
		return err
	}
	defer closeRedis()
	host, _ := os.Hostname() // for the history alone
	limits, err := worker.New(rdb, worker.Config{
		File: file, App: s.app, Summary: -1, By: "worker serve on " + cmp.Or(host, "unknown"), NoUsage: !s.usage, NoMetrics: true, Logger: log, Version: cli.Version(),
		ReloadOn: hangups(s.limits), ExplainRedis: func(err error) error { return cli.Explain(err, url) },
	})
	if err != nil {
		return err
	}
	handler, err := httpserve.New(httpserve.Config{Limiter: limits.Limiter(), Clients: clients, Logger: limits.Logger()})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", s.addr.addr)
	if err != nil {
		return listenError(err, s.addr.addr, "-listen", "another server? -listen another port, or stop what listens there")
	}
	defer func() { _ = ln.Close() }() // if it was not served
	if err := limits.Begin(ctx); err != nil {
		return explain(ctx, err, url)
	}
	defer limits.End()
	return s.serve(ctx, ln, limits, handler, clients, log)
}

// servedAtOnce is how many calls to Redis may be under way: decisions share theirs, and settlements, renewals and reports do not.
const servedAtOnce = 48

// serve serves until ctx ends, and then lets the requests end that wait for their start.
func (s *serveCommand) serve(ctx context.Context, ln net.Listener, limits *worker.Limits, handler *httpserve.Handler, clients *httpserve.Clients, log *slog.Logger) error {
	h := &health{of: limits, started: time.Now(), version: cli.Version()}
	server := newServer(s.route(handler, statusHandler(h, limits.MetricsHandler())), log)
	server.TLSConfig = s.tls
	var beside sync.WaitGroup
	defer beside.Wait()
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	beside.Go(func() { limits.Limiter().Heartbeat(live) })
	if clients != nil {
		beside.Go(func() { clients.Follow(live, log) })
	}
	if s.certificate != nil {
		beside.Go(func() { s.certificate.Follow(live, log) })
	}
	beside.Go(func() {
		select {
		case <-ctx.Done():
		case <-live.Done():
		}
		h.stopping.Store(true)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpserve.MaxWait+time.Second)
		defer cancel()
		if server.Shutdown(last) != nil {
			_ = server.Close() // leases that their connections hold
		}
	})
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	} else if !s.addr.loopback {
		log.WarnContext(ctx, "tokens are sent in the clear: give -tls-cert, or let a proxy end TLS")
	}
	log.InfoContext(ctx, "ready", "url", scheme+"://"+ln.Addr().String()+"/v1/", "clients", s.clients != "")
	var err error
	if s.tls != nil {
		err = server.ServeTLS(ln, "", "")
	} else {
		err = server.Serve(ln)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// route sends /v1/ to the handler. Without clients it is for this machine alone, as the rest is.
func (s *serveCommand) route(handler, status http.Handler) http.Handler {
	status = s.addr.guard(status)
	if s.clients == "" {
		handler = s.addr.guard(handler)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			handler.ServeHTTP(w, r)
			return
		}
		status.ServeHTTP(w, r)
	})
}
