package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
)

// The requests that http.Transport would send again, and some that it would not.
var replays = map[string]payload{
	"GET":                     {Method: "GET"},
	"HEAD":                    {Method: "HEAD"},
	"OPTIONS":                 {Method: "OPTIONS"},
	"GET with body":           {Method: "GET", Body: "b"},
	"POST":                    {Method: "POST", Body: "b"},
	"PUT":                     {Method: "PUT", Body: "b"},
	"DELETE":                  {Method: "DELETE"},
	"POST Idempotency-Key":    {Method: "POST", Body: "b", Headers: map[string]string{"Idempotency-Key": "k"}},
	"POST X-Idempotency-Key":  {Method: "POST", Body: "b", Headers: map[string]string{"X-Idempotency-Key": "k"}},
	"POST key, without body":  {Method: "POST", Headers: map[string]string{"idempotency-key": "k"}},
	"PATCH key, without body": {Method: "PATCH", Headers: map[string]string{"idempotency-key": "k"}},
}

// killSecond kills the first connection when it has read a second request there. It answers all other requests.
func killSecond(kill func(*peer)) func(*peer) {
	return func(p *peer) {
		if p.n > 1 {
			always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(p)
			return
		}
		p.request()
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		p.request()
		kill(p)
	}
}

var kills = map[string]func(*peer){
	"closed":                 func(p *peer) { _ = p.Close() },
	"reset":                  func(p *peer) { p.reset() },
	"closed while answering": func(p *peer) { p.say("HTTP/1.1 20") }, // listen closes it
}

// One charge is at most one request sent: a kept connection that dies after it took the request fails the run.
func TestOneChargeIsAtMostOneRequest(t *testing.T) {
	t.Parallel()
	donor := httptest.NewTLSServer(nil) // for its certificate
	donor.Close()
	roots := x509.NewCertPool()
	roots.AddCert(donor.Certificate())
	for scheme, wrap := range map[string]func(net.Conn) net.Conn{
		"http": nil, "https": func(c net.Conn) net.Conn { return tls.Server(c, donor.TLS) },
	} {
		for how, kill := range kills {
			for name, p := range replays {
				t.Run(scheme+" "+name+" "+how, func(t *testing.T) {
					t.Parallel()
					s, p := listenOn(t, "127.0.0.1:0", wrap, killSecond(kill)), p
					p.URL = scheme + "://" + s.addr
					h := handler(t, Config{}, seams{roots: roots})
					must(t, run(t, h, p))
					err := run(t, h, p)
					if requests, conns := s.requests.Load(), s.conns.Load(); requests != 2 || conns != 1 {
						t.Errorf("%d requests arrived for two runs, on %d connections: %v", requests, conns, err)
					}
					wantPermanent(t, err, false)
					must(t, run(t, h, p)) // the next run is not harmed
				})
			}
		}
	}
}

// fickle is a connection whose write number at takes n bytes and fails.
type fickle struct {
	net.Conn
	at, n  int64
	writes atomic.Int64
}

func (f *fickle) Write(b []byte) (int, error) {
	if f.writes.Add(1) != f.at {
		return f.Conn.Write(b)
	}
	n, _ := f.Conn.Write(b[:f.n])
	_ = f.Close()
	return n, errors.New("fickle")
}

// If a kept connection took no byte, the request goes out on another one, once. If it took a byte, the run fails.
func TestUnsentRequestGoesOutOnAnotherConnection(t *testing.T) {
	t.Parallel()
	for name, p := range replays {
		for took, taken := range map[string]int64{"nothing": 0, "a byte": 1} {
			t.Run(name+" took "+took, func(t *testing.T) {
				t.Parallel()
				s, p := listen(t, always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")), p
				p.URL = s.url
				var first atomic.Bool
				h := handler(t, Config{}, seams{wrap: func(c net.Conn) net.Conn {
					if first.Swap(true) {
						return c
					}
					return &fickle{Conn: c, at: 2, n: taken}
				}})
				must(t, run(t, h, p))
				err := run(t, h, p)
				requests, conns := s.requests.Load(), s.conns.Load()
				if want := 2 - taken; (err == nil) != (taken == 0) || requests != want || conns != want {
					t.Errorf("%d requests on %d connections, err = %v", requests, conns, err)
				}
			})
		}
	}
}

// Bytes behind an answer are never the answer to the next task's request, nor printed by net/http (TestMain looks).
func TestAnswersAreNotMixedUp(t *testing.T) {
	t.Parallel()
	const extra = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Echo: hush\r\n\r\n"
	for name, answer := range map[string]string{
		"behind an empty body": "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"behind a body":        ok,
		"behind a long body":   "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000),
		"behind chunks":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"behind no content":    "HTTP/1.1 204 No Content\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := listen(t, func(p *peer) {
				p.request()
				if p.n%2 == 1 {
					p.say("%s%s", answer, extra)
				} else {
					p.say("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				}
				p.request()
			})
			h := handler(t, Config{}, seams{})
			for range 20 {
				must(t, run(t, h, payload{URL: s.url}))
				if err := run(t, h, payload{Method: "POST", URL: s.url}); err == nil {
					t.Fatal("the second run took the first one's bytes for its answer")
				}
				if s.conns.Load()%2 == 1 { // the second run died on the first's connection: start the next pair even
					if err := run(t, h, payload{URL: s.url}); err == nil {
						t.Fatal("a connection was used again")
					}
				}
			}
		})
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	start := func(cfg *tls.Config) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.Proto, http.StatusTeapot)
		}))
		s.EnableHTTP2 = true
		s.TLS = cfg
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	modern := start(&tls.Config{})
	roots := x509.NewCertPool()
	roots.AddCert(modern.Certificate())
	_, port, _ := net.SplitHostPort(modern.Listener.Addr().String())
	for name, tc := range map[string]struct {
		url   string
		roots *x509.CertPool
		want  string // "answered" of a server that was trusted
	}{
		"a server that offers HTTP/2": {modern.URL, roots, "answered 418 I'm a teapot: HTTP/1.1"},
		"an unknown authority":        {modern.URL, nil, "x509: certificate signed by unknown authority"},
		"a name with a trailing dot":  {"https://Example.com.:" + port, roots, "answered 418 I'm a teapot: HTTP/1.1"},
		"a wrong name":                {"https://wrong.test:" + port, roots, "x509: certificate is valid for example.com"},
		"TLS 1.1":                     {start(&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}).URL, roots, "protocol version"},
		"TLS 1.2":                     {start(&tls.Config{MaxVersion: tls.VersionTLS12}).URL, roots, "answered 418 I'm a teapot: HTTP/1.1"},
	} {
		h := handler(t, Config{AllowHosts: []string{"127.0.0.1", "example.com", "wrong.test"}}, seams{roots: tc.roots, resolver: resolves("127.0.0.1")})
		t.Run(name, func(t *testing.T) {
			wantPermanent(t, run(t, h, payload{URL: tc.url}), strings.HasPrefix(tc.want, "answered"), tc.want)
		})
	}
}

func TestNoProxyNoHTTP2(t *testing.T) {
	t.Parallel()
	tr := handler(t, Config{}, seams{}).transport
	if tr.Proxy != nil || tr.Protocols.HTTP2() || tr.Protocols.UnencryptedHTTP2() || tr.TLSNextProto == nil || len(tr.TLSNextProto) > 0 || tr.ForceAttemptHTTP2 {
		t.Error("a proxy would dial for us, behind the address guard, or HTTP/2 is on")
	}
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// "A malformed context is not sent."
func TestTraceContext(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ parent, state, wantParent, wantState string }{
		"none":        {"", "", "", ""},
		"both":        {parent, "vendor=1", parent, "vendor=1"},
		"state alone": {"", "vendor=1", "", ""},
		"no state":    {parent, "of no vendor", parent, ""},
		"injected":    {parent + "\r\nX-Evil: 1", "", "", ""},
	} {
		header := http.Header{}
		TraceContext(t.Context(), asynq.NewTaskWithHeaders("http", nil, map[string]string{"traceparent": tt.parent, "tracestate": tt.state}), header)
		if header.Get("Traceparent") != tt.wantParent || header.Get("Tracestate") != tt.wantState {
			t.Errorf("%s: %v", name, header)
		}
	}
}

// "A header that the task itself names stays as it is."
func TestHeadersAreAdded(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- r })
	h := handler(t, Config{Headers: func(ctx context.Context, t *asynq.Task, header http.Header) {
		TraceContext(ctx, t, header)
		header["x-tenant"] = []string{"of the hook"}
		header["Host"] = []string{"elsewhere.example"}
		header["Transfer-Encoding"] = []string{"chunked"}
		header["X-Broken"] = []string{"a\r\nb: c"}
		header["X-None"] = nil
	}}, seams{})
	plain := task(t, payload{URL: s.URL, Headers: map[string]string{"X-Tenant": "acme"}})
	traced := asynq.NewTaskWithHeaders(plain.Type(), plain.Payload(), map[string]string{"traceparent": parent})
	must(t, h.ProcessTask(t.Context(), traced))
	r := <-got
	if r.Header.Get("Traceparent") != parent || r.Header.Get("X-Tenant") != "acme" || r.Host != s.Listener.Addr().String() ||
		len(r.TransferEncoding) != 0 || r.Header["X-Broken"] != nil || r.Header["X-None"] != nil {
		t.Errorf("%s %v", r.Host, r.Header)
	}
}
