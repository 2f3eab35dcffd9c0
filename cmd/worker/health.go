package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// healthAge is how old an answer of Redis may be for /healthz, so that many requests are not as many pings.
const healthAge = 250 * time.Millisecond

// health answers /healthz.
type health struct {
	of          wellbeing
	stopping    atomic.Bool
	started     time.Time
	version     string
	concurrency int
	queues      map[string]int
}

// wellbeing is what worker.Limits knows of itself.
type wellbeing interface {
	RedisErr(ctx context.Context, maxAge time.Duration) error
	LimitsErr() error
	FileErr() error
	Workers() int
}

// healthAnswer is the body of /healthz. Fields may be added.
type healthAnswer struct {
	Status        string         `json:"status"`               // ok, unavailable or stopping
	Redis         string         `json:"redis"`                // ok, or why it cannot be used
	Workers       *int           `json:"workers,omitempty"`    // live workers on this Redis; absent while unknown
	Concurrency   int            `json:"concurrency,omitzero"` // absent of worker serve, as queues
	Queues        map[string]int `json:"queues,omitzero"`
	Limits        string         `json:"limits"`      // ok, or why those in Redis are not in force
	LimitsFile    string         `json:"limits_file"` // ok, or why the changed file cannot be used
	UptimeSeconds int64          `json:"uptime_seconds"`
	Version       string         `json:"version"`
}

// ServeHTTP answers 200 when tasks are taken, and 503 with the reason when Redis does not answer or the worker is stopping.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := healthAnswer{
		Status: "ok", Redis: "ok", Limits: "ok", LimitsFile: "ok", Concurrency: h.concurrency, Queues: h.queues, Version: h.version,
		UptimeSeconds: int64(time.Since(h.started).Seconds()),
	}
	code := http.StatusOK
	if err := h.of.LimitsErr(); err != nil {
		a.Limits = err.Error()
	}
	if err := h.of.FileErr(); err != nil {
		a.LimitsFile = err.Error()
	}
	if err := h.of.RedisErr(r.Context(), healthAge); err != nil {
		a.Status, a.Redis, code = "unavailable", err.Error(), http.StatusServiceUnavailable
	} else if n := h.of.Workers(); n >= 0 {
		a.Workers = &n
	}
	if h.stopping.Load() {
		a.Status, code = "stopping", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(a) // the asker may have gone
}

// statusHandler routes what -listen serves.
func statusHandler(h *health, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", h)
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "worker: /healthz, /metrics\n")
	})
	return mux
}

const healthLong = `Asks a worker that runs with -listen on this machine whether it takes tasks, and says in
one line why it does not. It is for probes that run a command: of Kubernetes, of a
container's HEALTHCHECK, of a supervisor. It sends the token in HEADWAY_LISTEN_TOKEN,
where there is one, so that no probe holds it as text.`

const (
	defaultListen = ":9090"
	// mostHealth bounds what is read of an answer, and mostReason what is printed of another program's.
	mostHealth, mostReason = 64 << 10, 200
)

// probe is one run of "worker health".
type probe struct {
	listen  string
	live    bool
	timeout time.Duration
	token   string
}

func newHealth(getenv func(string) string) *cobra.Command {
	var p probe
	c := &cobra.Command{
		Use: "health", Short: "Ask a worker whether it takes tasks", Long: healthLong, Args: cli.Args(0, 0), Example: "  worker health -listen :9090",
		RunE: func(c *cobra.Command, _ []string) error {
			p.token = strings.TrimSpace(getenv(tokenVariable))
			addr, err := p.addr()
			if err == nil && p.timeout <= 0 {
				err = cli.Errorf("-timeout 5s", "-timeout %s is not above 0", p.timeout)
			}
			if err != nil {
				return cli.Usage(err)
			}
			well, err := p.ask(c.Context(), addr)
			if err == nil {
				_, _ = fmt.Fprintln(c.OutOrStdout(), well)
			}
			return err
		},
	}
	c.Flags().StringVar(&p.listen, "listen", defaultListen, "the worker's own -listen, an `ADDR`. Where that is all addresses, such as 0.0.0.0:9090, this machine is asked")
	c.Flags().BoolVar(&p.live, "live", false, "ask only whether the process answers: for a liveness probe, which is not to restart workers while Redis is away")
	cli.DurationVar(c.Flags(), &p.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return c
}

// addr returns where to ask: an address that stands for all of the machine's is its loopback.
func (p probe) addr() (string, error) {
	host, port, err := net.SplitHostPort(cmp.Or(p.listen, defaultListen))
	if err != nil || port == "" {
		return "", cli.Errorf("-listen "+defaultListen, "-listen %q is not HOST:PORT", p.listen)
	}
	switch ip := net.ParseIP(host); {
	case host == "", ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = loopback
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// ask returns the line that says the worker is well, or why it is not.
func (p probe) ask(ctx context.Context, addr string) (well string, err error) {
	path, well := "/healthz", "ok: the worker takes tasks"
	if p.live {
		path, well = "/", "ok: the worker answers"
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", cli.Errorf("-listen "+defaultListen, "-listen %q is not HOST:PORT", p.listen)
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	// No proxy, and no redirect: the token is for the worker alone.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return "", p.silent(addr, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostHealth))
	if err != nil {
		return "", p.silent(addr, err)
	}
	return well, unwell(addr, resp.StatusCode, body)
}

func (p probe) silent(addr string, err error) error {
	if timeout, is := errors.AsType[net.Error](err); is && timeout.Timeout() {
		return cli.Errorf("a longer -timeout, or restart the worker", "no answer from %s within %s", addr, p.timeout)
	}
	if op, is := errors.AsType[*net.OpError](err); is && op.Op == "dial" {
		return cli.Errorf("worker -listen "+defaultListen+" …, and worker health -listen with the same address", "no worker answers at %s: %v", addr, op.Err)
	}
	return fmt.Errorf("no worker answers at %s: %w", addr, errors.Unwrap(err))
}

// unwell says why an answer is not that of a worker which is well, nil where it is.
func unwell(addr string, code int, body []byte) error {
	var a healthAnswer
	known := json.Unmarshal(body, &a) == nil && a.Status != ""
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized:
		return cli.Errorf(tokenVariable+"=… worker health, as the worker has it", "the worker at %s refuses the token, or the lack of one", addr)
	case code == http.StatusServiceUnavailable && a.Status == "stopping":
		return errors.New("the worker is stopping, and takes no new tasks")
	case code == http.StatusServiceUnavailable && known:
		return fmt.Errorf("the worker takes no tasks: %s", oneLine(a.Redis))
	}
	return cli.Errorf("-listen with the worker's own address", "what answers at %s is no worker, or not well: status %d, %s", addr, code, oneLine(string(body)))
}

// oneLine is the beginning of a text in one line.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if runes := []rune(text); len(runes) > mostReason {
		return string(runes[:mostReason]) + "…"
	}
	return text
}
