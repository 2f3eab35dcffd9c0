package outbound

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue/httpsyntax"
	"github.com/headway-go/headway/throttle/upstream"
)

const (
	maxResponse         = 1 << 20  // bytes of an answer's body that are read, so that its connection can be reused
	maxUsage            = 64 << 20 // the same if its end has what was used
	snippet             = 256      // bytes of an answer that is not 2xx that the error shows
	defaultUserAgent    = "headway"
	idlePerHost         = 64 // kept connections; more may be in use
	defaultTimeout      = 30 * time.Second
	maxIdleConns        = 1024
	drainTime           = time.Second      // for a body, once the answer's status is known
	maxHeaderBytes      = 64 << 10         // all header lines of one answer, 1xx answers included
	idleTimeout         = 30 * time.Second // shorter than most servers', so that few requests hit a closing connection
	dialTimeout         = 30 * time.Second
	tlsHandshakeTimeout = 10 * time.Second
)

// Config configures New. The zero Config works: it refuses every address that is not public, and those
// of the machine's own interfaces.
type Config struct {
	// AllowHosts lists the hosts that may be dialled although their address is not public: "HOST" (any port) or "HOST:PORT", IPv6
	// literals in brackets. A name is compared with the host in the URL, both in ASCII (IDNA), ignoring case and a trailing dot.
	// It allows any address that the name resolves to, and no other spelling of that address. Defaults to none.
	AllowHosts []string

	// OnlyHosts lists the only hosts that may be dialled, in the form of AllowHosts. Other names are
	// not even resolved. It allows no address that is refused otherwise. Defaults to none: any host.
	OnlyHosts []string

	// DenyCIDRs are ranges of addresses that are never dialled, such as "10.1.0.0/16" or "2001:db8::/32", whatever AllowHosts and
	// OnlyHosts list. An IPv4 range also applies to IPv6 addresses that a gateway would forward to it. Defaults to none.
	DenyCIDRs []string

	// Ports are the only ports that are dialled, whatever AllowHosts and OnlyHosts list. Defaults to none: any port.
	Ports []int

	// AllowMethods lists methods that tasks may use besides GET, HEAD, POST, PUT, PATCH, DELETE and
	// OPTIONS, such as "PROPFIND". Other words are refused, since they may be commands to a server
	// that does not speak HTTP. CONNECT and TRACE are invalid here. Defaults to none.
	AllowMethods []string

	// Secrets lists the secrets that tasks may refer to in header values, paths and queries instead of containing them, with the
	// host that each may be sent to. "env:NAME@HOST" allows ${env:NAME}, from this process's environment. "file:PATH@HOST:PORT"
	// allows ${file:PATH}, read for each request. Without a port a secret is sent by https only. A task that refers to any other
	// secret fails for good. Defaults to none.
	//
	// An entry whose name ends in {member} has a secret for each member of a pool: "file:DIR/{member}@HOST" in the file of that name
	// in DIR, "env:PREFIX_{member}@HOST" in the variable PREFIX_ALIAS. A header's value that contains {{secret .member}} gets that of
	// the member that Member returns. A host has one such entry.
	Secrets []string

	// Member returns the alias of the pool's member that the task was granted, "" for none. ctx is that of the task. Set it to
	// worker.Member. Defaults to none.
	Member func(ctx context.Context) string

	// Logger receives one Debug record for each request: method, host, status and elapsed_ms, nothing
	// else of the task. Defaults to a logger that discards.
	Logger *slog.Logger

	// OnResponse is called with each answer, and returns what it means for the task. Set it to a function that calls
	// worker.ReportResponse, so that all workers apply what the answer says about the API's limits:
	//
	//	func(ctx context.Context, resp *http.Response) upstream.Hint { return worker.ReportResponse(ctx, resp).Hint }
	//
	// Defaults to upstream.Read of the status and the header.
	OnResponse func(ctx context.Context, resp *http.Response) upstream.Hint

	// OnSent is called when a request was written, with the context of its task. Set it to worker.ReportSent, so that a late
	// request counts for the moment at which it left. It must not block. Defaults to none.
	OnSent func(ctx context.Context)

	// Headers adds headers to each request, such as the context of a trace: see TraceContext and package worker/oteltask. It
	// changes no header that the task sets, and its headers go to any host that a task names. It must be quick. Defaults to none.
	Headers func(ctx context.Context, t *asynq.Task, header http.Header)

	// UserAgent is sent unless the task has its own User-Agent header. Defaults to "headway".
	UserAgent string
}

// seams are the places where tests replace the network.
type seams struct {
	resolver *net.Resolver                // nil: the system's resolver
	roots    *x509.CertPool               // nil: the system's
	refuse   func(netip.Addr) string      // nil: the function refusal
	own      func() ([]netip.Addr, error) // nil: the addresses of the machine's interfaces
	wrap     func(net.Conn) net.Conn      // nil: none; wraps each TCP connection
}

// Handler runs tasks of type http. It is an asynq.Handler, safe for concurrent use. See the package comment for its guarantees.
type Handler struct {
	cfg         Config // with its defaults
	transport   *http.Transport
	secrets     references
	maxResponse int64 // the constants of these names, but for tests
	snippet     int
	drainTime   time.Duration
}

var _ asynq.Handler = (*Handler)(nil)

// New returns a Handler. It makes no connection and starts no goroutine. The error, if any, lists every fault of cfg.
func New(cfg Config) (*Handler, error) { return build(cfg, seams{}) }

func build(cfg Config, s seams) (*Handler, error) {
	reach, err := parseReach(cfg)
	secrets, wrong := parseReferences(cfg.Secrets)
	if err := errors.Join(err, wrong, cfg.validate()); err != nil {
		return nil, err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.OnResponse == nil {
		cfg.OnResponse = func(_ context.Context, resp *http.Response) upstream.Hint {
			return upstream.Read(resp.StatusCode, resp.Header, time.Now())
		}
	}
	if cfg.OnSent == nil {
		cfg.OnSent = func(context.Context) {}
	}
	if cfg.Member == nil {
		cfg.Member = func(context.Context) string { return "" }
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, defaultUserAgent)
	return &Handler{
		cfg: cfg, transport: newTransport(newDialer(reach, s)), secrets: secrets,
		maxResponse: maxResponse, snippet: snippet, drainTime: drainTime,
	}, nil
}

func (c Config) validate() error {
	var faults []error
	for _, method := range c.AllowMethods {
		if reason := httpsyntax.MethodFault(method); reason != "" {
			faults = append(faults, fmt.Errorf("outbound: allow method %q: %s", method, reason))
		}
	}
	if reason := httpsyntax.HeaderFault("User-Agent", c.UserAgent); reason != "" {
		faults = append(faults, errors.New("outbound: UserAgent "+reason))
	}
	return errors.Join(faults...)
}

// newTransport returns the transport of one Handler: without a proxy, which would dial behind the address
// guard; without HTTP/2, see doc.go; without decompression, so that a small answer stays small.
func newTransport(d *dialer) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		DisableCompression:     true,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    idlePerHost,
		MaxResponseHeaderBytes: maxHeaderBytes,
		Protocols:              protocols,
		ReadBufferSize:         readBuffer,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

// Close closes the idle connections. Requests in progress go on, and their connections are closed afterwards.
func (h *Handler) Close() { h.transport.CloseIdleConnections() }

// ProcessTask sends the one request that t's payload describes, and returns nil if the answer is 2xx.
// It ends by ctx's deadline, or after 30 seconds if ctx has none.
//
// Its errors are *PayloadError and *BlockedError (nothing was sent) and *StatusError (an answer came). Errors that no retry can
// cure also wrap asynq.SkipRetry. If ctx ends before the answer, the error wraps ctx's error and its cause. After any other error
// the API may or may not have received the request; asynq retries it. Costs no Redis command except those of Config.OnResponse.
func (h *Handler) ProcessTask(ctx context.Context, t *asynq.Task) error {
	start := time.Now()
	c, err := h.parse(t.Payload(), h.cfg.Member(ctx))
	if bad, ok := errors.AsType[*PayloadError](err); ok {
		return permanent{bad}
	} else if err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	if h.cfg.Headers != nil {
		c.add(func(more http.Header) { h.cfg.Headers(ctx, t, more) })
	}
	status, err := h.send(ctx, c, start)
	if h.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		h.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "outbound request",
			slog.String("method", c.method), slog.String("host", c.url.Host), slog.Int("status", status),
			slog.Int64("elapsed_ms", time.Since(start).Milliseconds()))
	}
	return err
}

// send makes the exchange. It returns the answer's status, 0 if none came.
func (h *Handler) send(ctx context.Context, c *call, start time.Time) (int, error) {
	reqCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &permit{cancel: cancel, wrote: func() { h.cfg.OnSent(ctx) }}
	reqCtx = context.WithValue(reqCtx, permitKey{}, p)
	reqCtx = httptrace.WithClientTrace(reqCtx, p.trace())

	// Not by http.Client: it follows redirects, and its errors contain the whole URL.
	resp, err := h.transport.RoundTrip(c.request(reqCtx))
	if err != nil {
		return 0, failure(ctx, c, err, time.Since(start))
	}
	// The status is known: a slow body must not hold the run's slot.
	late := time.AfterFunc(h.drainTime, func() { cancel(errDrained) })
	defer late.Stop()
	means := h.cfg.OnResponse(ctx, resp)
	if means.Usage { // the end of the body is what counts, however long the API takes
		late.Stop()
	}
	return resp.StatusCode, h.answer(c, resp, means)
}

var errDrained = errors.New("outbound: the answer's body took too long")
