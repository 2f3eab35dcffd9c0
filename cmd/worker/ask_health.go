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
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// healthUsage is what "worker health -h" prints; testdata/health.golden holds the same text.
const healthUsage = `Usage: worker health [flags]

Asks a worker that runs with -listen on this machine whether it takes tasks, and
says in one line why it does not. It is for probes that run a command: of
Kubernetes, of a container's HEALTHCHECK, of a supervisor. It sends the token in
HEADWAY_LISTEN_TOKEN, where there is one, so that no probe holds it as text.

Flags:
  -listen ADDR      the worker's own -listen. Where that is all addresses, such
                    as 0.0.0.0:9090, this machine is asked. Default: :9090
  -live             ask only whether the process answers: for a liveness probe,
                    which is not to restart workers while Redis is away
  -timeout DURATION
                    how long to wait for the answer. Default: 5s
  -h                print this

Exit codes: 0 it takes tasks, 1 it does not, 2 bad usage, 130 interrupted.

Example:
  worker health -listen :9090
`

const (
	defaultListen = ":9090"
	// mostHealth bounds what is read of an answer, and mostReason what is printed of another program's.
	mostHealth, mostReason = 64 << 10, 200
)

// healthCommand is one run of "worker health".
type healthCommand struct {
	listen  string
	live    bool
	timeout time.Duration
	token   string
}

// newHealth returns the command "worker health", and what it reads.
func newHealth() (*cli.Command, *healthCommand) {
	c, h := cli.NewCommand(prog+" health", healthUsage), &healthCommand{}
	c.About = "ask a worker whether it takes tasks"
	c.Flags.StringVar(&h.listen, "listen", defaultListen, "")
	c.Flags.BoolVar(&h.live, "live", false, "")
	c.Flags.DurationVar(&h.timeout, "timeout", 5*time.Second, "")
	return c, h
}

// runHealth is the program "worker health".
func runHealth(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c, h := newHealth()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	h.token = strings.TrimSpace(getenv(tokenVariable))
	addr, err := h.addr()
	switch {
	case err != nil:
	case len(words) > 0:
		err = cli.Errorf("worker health -h", "unexpected argument %q: worker health takes flags only", words[0])
	case h.timeout <= 0:
		err = cli.Errorf("-timeout 5s", "-timeout %s is not above 0", h.timeout)
	}
	if err != nil {
		c.Fail(stderr, c.Name, err)
		return cli.ExitUsage
	}
	said, err := h.ask(ctx, addr)
	if err == nil {
		_, err = io.WriteString(stdout, said)
	}
	if err != nil {
		if ctx.Err() != nil {
			return cli.ExitInterrupted
		}
		c.Fail(stderr, c.Name, err)
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// addr is where to ask: an address that stands for all of the machine's is its loopback.
func (h *healthCommand) addr() (string, error) {
	host, port, err := net.SplitHostPort(cmp.Or(h.listen, defaultListen))
	if err != nil || port == "" {
		return "", cli.Errorf("-listen "+defaultListen, "-listen %q is not HOST:PORT", h.listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = loopback
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port), nil
}

// ask returns the line that says the worker is well, or why it is not.
func (h *healthCommand) ask(ctx context.Context, addr string) (string, error) {
	path, well := "/healthz", "ok: the worker takes tasks\n"
	if h.live {
		path, well = "/", "ok: the worker answers\n"
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", cli.Errorf("-listen "+defaultListen, "-listen %q is not HOST:PORT", h.listen)
	}
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	// No proxy, and no redirect: the token is for the worker alone.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return "", h.silent(addr, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostHealth))
	if err != nil {
		return "", h.silent(addr, err)
	}
	return well, unwell(addr, resp.StatusCode, body)
}

func (h *healthCommand) silent(addr string, err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return cli.Errorf("a longer -timeout, or restart the worker", "no answer from %s within %s", addr, h.timeout)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
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
	case code == http.StatusServiceUnavailable && known && a.Status == "stopping":
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
