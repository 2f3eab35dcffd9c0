package outbound

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/programs"
)

// printed is what net/http says through package log while the tests run.
var printed programs.Output

func TestMain(m *testing.M) {
	log.SetOutput(&printed)
	code := m.Run()
	if text := printed.String(); text != "" {
		fmt.Fprintf(os.Stderr, "net/http printed what a server sent:\n%s", text)
		code = 1
	}
	os.Exit(code)
}

// handler returns a Handler that may dial 127.0.0.1.
func handler(tb testing.TB, cfg Config, s seams) *Handler {
	tb.Helper()
	if cfg.AllowHosts == nil {
		cfg.AllowHosts = []string{"127.0.0.1"}
	}
	h, err := build(cfg, s)
	must(tb, err)
	tb.Cleanup(h.Close)
	return h
}

func task(tb testing.TB, p payload) *asynq.Task {
	tb.Helper()
	data, err := json.Marshal(p)
	must(tb, err)
	return asynq.NewTask("http", data)
}

func run(tb testing.TB, h *Handler, p payload) error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	return h.ProcessTask(ctx, task(tb, p))
}

// peer is one connection that a rawServer accepted, seen from the server.
type peer struct {
	net.Conn
	n      int // 1 for the server's first connection
	in     *bufio.Reader
	server *rawServer
}

// request reads one whole request, and returns nil if the client closed instead.
func (p *peer) request() *http.Request {
	req, err := http.ReadRequest(p.in)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	p.server.requests.Add(1)
	return req
}

func (p *peer) say(format string, args ...any) { _, _ = fmt.Fprintf(p, format, args...) }

// reset closes the connection with RST.
func (p *peer) reset() {
	if tcp, ok := p.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = p.Close()
}

// rawServer is a server that may do what no HTTP server would.
type rawServer struct {
	url      string
	addr     string
	port     string
	requests atomic.Int64
	conns    atomic.Int64
	wg       sync.WaitGroup
}

// listen serves each connection with f, and closes it after.
func listen(tb testing.TB, f func(*peer)) *rawServer {
	tb.Helper()
	return listenOn(tb, "127.0.0.1:0", nil, f)
}

func listenOn(tb testing.TB, addr string, wrap func(net.Conn) net.Conn, f func(*peer)) *rawServer {
	tb.Helper()
	l, err := net.Listen("tcp", addr)
	must(tb, err)
	s := &rawServer{addr: l.Addr().String(), url: "http://" + l.Addr().String()}
	_, s.port, _ = net.SplitHostPort(s.addr)
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if wrap != nil {
				c = wrap(c)
			}
			n := int(s.conns.Add(1))
			s.wg.Go(func() {
				defer func() { _ = c.Close() }()
				defer context.AfterFunc(tb.Context(), func() { _ = c.Close() })()
				f(&peer{Conn: c, n: n, in: bufio.NewReader(c), server: s})
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		s.wg.Wait()
	})
	return s
}

// always answers every request on a connection with the same text.
func always(answer string) func(*peer) {
	return func(p *peer) {
		for p.request() != nil {
			p.say("%s", answer)
		}
	}
}

// closedAddr is an address of this machine on which nothing listens.
func closedAddr(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// serve is a server of net/http for as long as the test runs.
func serve(tb testing.TB, f http.HandlerFunc) *httptest.Server {
	tb.Helper()
	s := httptest.NewServer(f)
	tb.Cleanup(s.Close)
	return s
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// wantPermanent wants an error that is tried again or is not, on one line with these words in it.
func wantPermanent(tb testing.TB, err error, want bool, words ...string) {
	tb.Helper()
	if err == nil {
		tb.Fatal("no error")
	}
	if got := errors.Is(err, asynq.SkipRetry); got != want {
		tb.Errorf("permanent = %v, want %v: %v", got, want, err)
	}
	if strings.Contains(err.Error(), "\n") {
		tb.Errorf("more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			tb.Errorf("%q is missing in: %v", w, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
