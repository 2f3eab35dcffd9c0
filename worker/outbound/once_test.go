package outbound

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
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

func transportReplays(p payload) bool {
	switch p.Method {
	case "GET", "HEAD", "OPTIONS":
		return true
	}
	return len(p.Headers) > 0
}

// killSecond answers the first request of the first connection, reads its second
// whole and kills the connection. Other connections are answered well.
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
	"closed": func(p *peer) { _ = p.Close() },
	"reset":  func(p *peer) { p.reset() },
	"closed while answering": func(p *peer) {
		p.say("HTTP/1.1 20")
		_ = p.Close()
	},
}

// One charge is at most one request sent: a kept connection that dies after the
// request was read fails the run, for every method and header, over TLS too.
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
					if err := run(t, h, p); err != nil {
						t.Fatalf("first: %v", err)
					}
					err := run(t, h, p)
					if got := s.requests.Load(); got != 2 {
						t.Errorf("%d requests arrived for two runs: %v", got, err)
					}
					wantPermanent(t, err, false)
					if got := s.conns.Load(); got != 1 {
						t.Errorf("%d connections were made", got)
					}
					if err := run(t, h, p); err != nil { // the next run is not harmed
						t.Errorf("third: %v", err)
					}
				})
			}
		}
	}
}

// The server above does catch a replay: http.Client falls for it.
func TestControlHTTPClientReplays(t *testing.T) {
	t.Parallel()
	for name, p := range replays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := listen(t, killSecond(kills["closed"]))
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for range 2 {
				req, err := http.NewRequest(p.Method, s.url, strings.NewReader(p.Body))
				must(t, err)
				for k, v := range p.Headers {
					req.Header.Set(k, v)
				}
				if resp, err := client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}
			want := int64(2)
			if transportReplays(p) {
				want = 3
			}
			if got := s.requests.Load(); got != want {
				t.Errorf("%d requests for two calls of http.Client, want %d: net/http has changed, read isReplayable again", got, want)
			}
		})
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

// A kept connection that took not a byte is not held against the task: the
// request goes out on another one, once. One that took a byte is.
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
				if err := run(t, h, p); err != nil {
					t.Fatalf("first: %v", err)
				}
				err := run(t, h, p)
				requests, conns := s.requests.Load(), s.conns.Load()
				if taken == 0 && (err != nil || requests != 2 || conns != 2) {
					t.Errorf("%d requests on %d connections, err = %v", requests, conns, err)
				}
				if taken > 0 && (err == nil || requests != 1 || conns != 1) {
					t.Errorf("%d requests on %d connections, err = %v", requests, conns, err)
				}
			})
		}
	}
}

// Bytes behind an answer are never the answer to the next task's request, nor
// printed by net/http (TestMain looks).
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
				if err := run(t, h, payload{URL: s.url}); err != nil {
					t.Fatalf("first: %v", err)
				}
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

// A replay that is refused does not use up the other kept connections.
func TestRefusedReplayLeavesOtherConnectionsAlone(t *testing.T) {
	t.Parallel()
	const n = 8
	var arrived sync.WaitGroup
	s := listen(t, func(p *peer) {
		for {
			req := p.request()
			if req == nil || req.URL.Path == "/kill" {
				p.reset()
				return
			}
			arrived.Done()
			arrived.Wait() // so that each of n requests needs a connection
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	h := handler(t, Config{}, seams{})
	together := func() {
		arrived.Add(n)
		var done sync.WaitGroup
		for range n {
			done.Go(func() {
				if err := run(t, h, payload{URL: s.url}); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
	}
	together()
	wantPermanent(t, run(t, h, payload{URL: s.url + "/kill"}), false)
	together()
	// The killed one is new again, and one more may be lost to the replay's end.
	if got := s.conns.Load(); got > n+2 {
		t.Errorf("%d connections, want %d at most", got, n+2)
	}
}
