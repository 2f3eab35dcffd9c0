package outbound

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestHugeAnswerIsCutShort(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"success": 200, "failure": 500} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := make(chan int64, 1)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				var total int64
				chunk := make([]byte, 32<<10)
				for {
					n, err := w.Write(chunk)
					total += int64(n)
					if err != nil {
						sent <- total
						return
					}
				}
			}))
			defer s.Close()
			err := run(t, handler(t, Config{MaxResponse: 64 << 10}, seams{}), payload{URL: s.URL})
			if (err == nil) != (status == 200) {
				t.Errorf("err = %v", err)
			}
			if n := <-sent; n > 64<<20 { // what the kernel's buffers hold, not what the server would send
				t.Errorf("the server could send %d bytes", n)
			}
		})
	}
}

// hungry is a connection that calls f when it is read again after it gave out mark.
type hungry struct {
	net.Conn
	mark string
	f    func()
	seen []byte
}

func (h *hungry) Read(b []byte) (int, error) {
	if bytes.Contains(h.seen, []byte(h.mark)) {
		h.f()
	}
	n, err := h.Conn.Read(b)
	h.seen = append(h.seen, b[:n]...)
	return n, err
}

func TestEndlessAnswerEndsWithTheRun(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 404, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "so far")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}))
			defer s.Close()
			ctx, cancel := context.WithCancel(t.Context()) // the run ends while the body is read
			defer cancel()
			h := handler(t, Config{}, seams{wrap: func(c net.Conn) net.Conn { return &hungry{Conn: c, mark: "so far", f: cancel} }})
			err := h.ProcessTask(ctx, task(t, payload{URL: s.URL}))
			if status == 200 {
				if err != nil {
					t.Errorf("the API said 200, and the task failed: %v", err)
				}
				return
			}
			var got *StatusError
			if !errors.As(err, &got) || got.Status != status || got.Snippet != "so far" {
				t.Fatalf("err = %v, want status %d with what came of the body", err, status)
			}
			wantPermanent(t, err, status == 404)
		})
	}
}

func TestSwitchingProtocolsDoesNotHang(t *testing.T) {
	t.Parallel()
	s := listen(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		p.request() // until the client closes
	})
	err := run(t, handler(t, Config{}, seams{}), payload{URL: s.url})
	wantPermanent(t, err, true)
	if !strings.Contains(err.Error(), "answered 101") {
		t.Error(err)
	}
}

func TestBodyThatBreaksOffChangesNothing(t *testing.T) {
	t.Parallel()
	s := listen(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf")
	})
	if err := run(t, handler(t, Config{}, seams{}), payload{Method: "POST", URL: s.url}); err != nil {
		t.Errorf("a charge that was made would be made again: %v", err)
	}
}

func TestCompressedAnswerStaysCompressed(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Close()
	asked := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(bomb.Bytes())
	}))
	defer s.Close()
	err := run(t, handler(t, Config{}, seams{}), payload{URL: s.URL})
	if enc := <-asked; enc != "" {
		t.Errorf("asked for %q", enc)
	}
	var got *StatusError
	if !errors.As(err, &got) || got.Snippet != "[compressed body, not shown]" {
		t.Errorf("err = %v", err)
	}
}

func TestHeaderFloodEnds(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{"headers": "X-More: more\r\n", "informational answers": "HTTP/1.1 103 Early Hints\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := listen(t, func(p *peer) {
				p.request()
				if name == "headers" {
					p.say("HTTP/1.1 200 OK\r\n")
				}
				for {
					if _, err := io.WriteString(p, line); err != nil {
						return
					}
				}
			})
			err := run(t, handler(t, Config{}, seams{}), payload{URL: s.url})
			wantPermanent(t, err, false)
			if !strings.Contains(err.Error(), "headers exceeded 65536 bytes") {
				t.Error(err)
			}
		})
	}
}

// "A body that drips must not hold the run's slot": once the status is known the run ends, as the status
// says, though the answer never does.
func TestDrippingBody(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		if r.URL.Path == "/500" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("drip ")); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			<-time.After(time.Millisecond)
		}
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]string{"/200": "", "/500": "500 Internal Server Error: drip"} {
		h := handler(t, Config{}, seams{})
		h.drain = 20 * time.Millisecond
		err := run(t, h, payload{URL: s.URL + path})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		<-ended // the connection is closed
	}
	if h := handler(t, Config{}, seams{}); h.drain != time.Second {
		t.Errorf("a body is read for %v", h.drain)
	}
}
