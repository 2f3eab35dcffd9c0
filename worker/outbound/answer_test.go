package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headway-go/headway/throttle/upstream"
	"github.com/hibiken/asynq"
)

// 2xx is success; 408, 425, 429 and 5xx are retried; every other answer is final, and no redirect is followed.
func TestStatuses(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.Header().Set("Location", "/200")
		w.WriteHeader(status)
	})
	h := handler(t, Config{}, seams{})
	for status := 200; status <= 599; status++ {
		err := run(t, h, payload{URL: fmt.Sprintf("%s/%d", s.URL, status)})
		if status < 300 {
			must(t, err)
			continue
		}
		var got *StatusError
		if !errors.As(err, &got) || got.Status != status || got.RetryAfter != -1 || got.Snippet != "" ||
			strings.Contains(err.Error(), "redirects are not followed") != (status < 400) {
			t.Errorf("%d: %+v", status, got)
		}
		wantPermanent(t, err, status != 408 && status != 425 && status != 429 && status < 500)
	}
}

func TestStatusErrorText(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "90")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte("{\n\t\"error\": \"slow\x00\x00\xff down\u202e\"\r\n}\n" + strings.Repeat("é", 1000)))
	})
	for _, limit := range []int{snippet, 20, 21, 46, 4096} {
		h := handler(t, Config{}, seams{})
		h.snippet = limit
		err := run(t, h, payload{Method: "POST", URL: s.URL + "/charge"})
		var got *StatusError
		if !errors.As(err, &got) || got.RetryAfter != 90*time.Second {
			t.Fatalf("err = %v", err)
		}
		whole := "{ \"error\": \"slow\ufffd down\ufffd\" } " + strings.Repeat("é", 1000)
		if !strings.HasPrefix(whole, got.Snippet) || len(got.Snippet) > limit || len(got.Snippet) < min(limit-3, len(whole)) || !utf8.ValidString(got.Snippet) {
			t.Errorf("Snippet %d: %d bytes: %q", limit, len(got.Snippet), got.Snippet)
		}
		if want := "outbound: POST " + s.URL + "/charge answered 429 Too Many Requests (retry after 1m30s): " + got.Snippet; err.Error() != want {
			t.Errorf("got %q", err)
		}
	}
	if got := (&StatusError{Status: 599, RetryAfter: -1}).Error(); got != "outbound: answered 599" {
		t.Error(got)
	}
}

// What an answer asks for is what package upstream reads in it, a day at most.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		status int
		header http.Header
		want   time.Duration
	}{
		{429, http.Header{}, -1},
		{429, http.Header{"Retry-After": {"86401"}}, 24 * time.Hour},
		{500, http.Header{"Retry-After": {now.Add(time.Minute).Format(http.TimeFormat)}}, time.Minute},
		{500, http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}, 30 * time.Second},
		{403, http.Header{"X-Ratelimit-Remaining": {"4988"}}, -1},
	} {
		hint := upstream.Read(tc.status, tc.header, now)
		if got, limited := retryAfter(hint), hint.Limited; got != tc.want || limited != (got >= 0 || tc.status == 429) {
			t.Errorf("%d with %v: %s, want %s", tc.status, tc.header, got, tc.want)
		}
	}
}

// "an answer says "later" with any status": what OnResponse returns counts, and the error still shows the body.
func TestOnResponseJudges(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("THROTTLED")) })
	for _, c := range []struct {
		means    upstream.Hint
		deferred bool
		want     string
	}{
		{upstream.Hint{}, false, ""},
		{upstream.Hint{Limited: true, Retry: time.Minute, RetryKnown: true}, true, "answered 200 OK (retry after 1m0s): THROTTLED"},
		{upstream.Hint{Limited: true, Burns: true}, false, "answered 200 OK: THROTTLED"},
		{upstream.Hint{Failed: true}, false, "answered 200 OK: THROTTLED"},
	} {
		err := run(t, handler(t, Config{OnResponse: func(context.Context, *http.Response) upstream.Hint { return c.means }}, seams{}), payload{URL: s.URL})
		if (c.want == "") != (err == nil) || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.means, err, c.want)
		}
		if asks, is := errors.AsType[*StatusError](err); is {
			if _, _, deferred := asks.DeferBy(); deferred != c.deferred || errors.Is(err, asynq.SkipRetry) {
				t.Errorf("%+v: deferred %v, %v", c.means, deferred, err)
			}
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\n b\x00\xff", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit &= 0xfff
		got := clean(s, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\t\x00\x1b") || clean(got, limit) != got {
			t.Errorf("clean(%q, %d) = %q", s, limit, got)
		}
	})
}

// However long a body is, and however slowly it comes, the run ends as the status says, and the connection is closed.
func TestHugeAnswerIsCutShort(t *testing.T) {
	t.Parallel()
	sent := make(chan int64, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/500") {
			w.WriteHeader(http.StatusInternalServerError)
		}
		chunk, pause := make([]byte, 32<<10), time.Duration(0)
		if strings.HasSuffix(r.URL.Path, "drip") {
			chunk, pause = []byte("drip "), time.Millisecond
		}
		var total int64
		for r.Context().Err() == nil {
			n, _ := w.Write(chunk)
			_ = http.NewResponseController(w).Flush()
			total += int64(n)
			<-time.After(pause)
		}
		sent <- total
	})
	for path, want := range map[string]string{"/200": "", "/500": "500", "/200/drip": "", "/500/drip": "500 Internal Server Error: drip"} {
		h, most := handler(t, Config{}, seams{}), int64(64<<20) // what the kernel's buffers hold, not what the server would send
		if h.maxResponse = 64 << 10; strings.HasSuffix(path, "drip") {
			h.drainTime, most = 20*time.Millisecond, 20<<10
		}
		if err := run(t, h, payload{URL: s.URL + path}); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		if n := <-sent; n > most {
			t.Errorf("%s: the server could send %d bytes", path, n)
		}
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
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "so far")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context()) // the run ends while the body is read
		h := handler(t, Config{}, seams{wrap: func(c net.Conn) net.Conn { return &hungry{Conn: c, mark: "so far", f: cancel} }})
		err := h.ProcessTask(ctx, task(t, payload{URL: s.URL}))
		cancel()
		if status == 200 {
			must(t, err)
			continue
		}
		var got *StatusError
		if !errors.As(err, &got) || got.Status != status || got.Snippet != "so far" {
			t.Fatalf("err = %v, want status %d with what came of the body", err, status)
		}
		wantPermanent(t, err, status == 404)
	}
}

func TestSwitchingProtocolsDoesNotHang(t *testing.T) {
	t.Parallel()
	s := listen(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		p.request() // until the client closes
	})
	wantPermanent(t, run(t, handler(t, Config{}, seams{}), payload{URL: s.url}), true, "answered 101")
}

// What was done would be done again if the run failed.
func TestBodyThatBreaksOffChangesNothing(t *testing.T) {
	t.Parallel()
	s := listen(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf")
	})
	must(t, run(t, handler(t, Config{}, seams{}), payload{Method: "POST", URL: s.url}))
}

func TestCompressedAnswerStaysCompressed(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		http.Error(w, "a bomb", http.StatusBadRequest)
	})
	err := run(t, handler(t, Config{}, seams{}), payload{URL: s.URL})
	var got *StatusError
	if enc := <-asked; enc != "" || !errors.As(err, &got) || got.Snippet != "[compressed body, not shown]" {
		t.Errorf("asked for %q, err = %v", enc, err)
	}
}

func TestHeaderFloodEnds(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{"headers": "X-More: more\r\n", "informational answers": "HTTP/1.1 103 Early Hints\r\n\r\n"} {
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
		wantPermanent(t, run(t, handler(t, Config{}, seams{}), payload{URL: s.url}), false, "headers exceeded 65536 bytes")
	}
}

// docs/llm.md: the answer of a language model is read to its end, however slowly it comes.
func TestUsageIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	for _, usage := range []bool{true, false} {
		ended := make(chan bool, 1)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				ended <- false
			case <-time.After(200 * time.Millisecond):
				ended <- true
			}
		})
		h := handler(t, Config{OnResponse: func(context.Context, *http.Response) upstream.Hint { return upstream.Hint{Usage: usage} }}, seams{})
		h.drainTime = time.Millisecond
		if err := run(t, h, payload{URL: s.URL}); err != nil || <-ended != usage {
			t.Errorf("usage %t: %v", usage, err)
		}
	}
}
