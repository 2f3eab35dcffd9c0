package countapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// pipes is a listener whose connections live in memory, as a bubble needs.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }
func (p *pipes) dial() net.Conn {
	c, s := net.Pipe()
	p.conns <- s
	return c
}

// bubble serves an API in memory, under the bubble's clock.
func bubble(t *testing.T, f func(t *testing.T, s *Server, p *pipes, c *http.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(p, Config{})
		tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return p.dial(), nil }}
		f(t, s, p, &http.Client{Transport: tr})
		tr.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// get sends one call and returns the status and the Retry-After of its answer.
func get(t *testing.T, c *http.Client, url, id, cost string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Task-Id", id)
	if cost != "" {
		req.Header.Set("X-Task-Cost", cost)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Retry-After")
}

func TestCallsAreLoggedWithTheirTimes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *Server, _ *pipes, c *http.Client) {
		<-time.After(5 * time.Second)
		get(t, c, "http://api"+Path("payments/acme")+"?latency=20ms", "a", "")
		<-time.After(time.Second)
		get(t, c, "http://api"+Path("payments/acme")+"?status=404", "b", "7")
		get(t, c, "http://api"+Path("payments/a b%:*?é"), "c", "")
		want := []Call{
			{1, "a", "payments/acme", 1, 5 * time.Second, 5*time.Second + 20*time.Millisecond, 200, nil},
			{2, "b", "payments/acme", 7, 6*time.Second + 20*time.Millisecond, 6*time.Second + 20*time.Millisecond, 404, nil},
			{3, "c", "payments/a b%:*?é", 1, 6*time.Second + 20*time.Millisecond, 6*time.Second + 20*time.Millisecond, 200, nil},
		}
		if got := s.Log(); !reflect.DeepEqual(got, want) {
			t.Errorf("log\n%v\nwant\n%v", got, want)
		}
		if calls, ok := s.Counts(); calls != 3 || ok != 2 {
			t.Errorf("Counts() = %d, %d, want 3, 2", calls, ok)
		}
	})
}

// "its arrival, which is taken when its first bytes come out of the socket"
func TestArrivalIsTheFirstByte(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *Server, p *pipes, _ *http.Client) {
		conn := p.dial()
		defer conn.Close()
		in := bufio.NewReader(conn)
		for i := range 3 {
			<-time.After(time.Second)
			for _, part := range []string{
				"P", "OST /v1/x/y HTTP/1.1\r\nHost: a\r\n", "Content-Length: 6\r\n\r\nabc", "def",
			} {
				if _, err := io.WriteString(conn, part); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Second)
			}
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			first := time.Duration(i*5+1) * time.Second
			got := s.Log()[i]
			if got.Arrived != first || got.Departed != first+3*time.Second {
				t.Errorf("call %d from %v to %v, want from %v to %v", i, got.Arrived, got.Departed, first, first+3*time.Second)
			}
		}
	})
}

// "The caller cannot have the answer any earlier"
func TestDepartureIsBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s, err := Start("127.0.0.1:0", Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 200 {
		get(t, http.DefaultClient, s.URL("x"), "id", "")
		if now, got := s.now(), s.Log()[i]; got.Departed > now || got.Departed < got.Arrived {
			t.Fatalf("call %v had its answer at %v", got, now)
		}
	}
}

func TestFirstCallsFail(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, _ *Server, _ *pipes, c *http.Client) {
		url := "http://api" + Path("x") + "?fail=429&times=2&retry_after=3&status=202"
		for _, id := range []string{"a", "b"} {
			for i, want := range []int{429, 429, 202, 202} {
				status, after := get(t, c, url, id, "")
				if status != want || (after == "3") != (want == 429) {
					t.Errorf("call %d of %s: %d, Retry-After %q, want %d", i, id, status, after, want)
				}
			}
		}
		if status, _ := get(t, c, "http://api"+Path("x")+"?fail=500", "a", ""); status != 500 {
			t.Errorf("fail without times: %d, want one 500", status)
		}
	})
}

func TestAScopeHasAnAnswer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *Server, _ *pipes, c *http.Client) {
		s.Answer("x/y", Answer{Latency: time.Minute, Status: 418, RetryAfter: 1500 * time.Millisecond})
		start := time.Now()
		if status, after := get(t, c, "http://api"+Path("x/y"), "a", ""); status != 418 || after != "2" || time.Since(start) != time.Minute {
			t.Errorf("%d, Retry-After %q after %v", status, after, time.Since(start))
		}
		if status, _ := get(t, c, "http://api"+Path("x/y")+"?status=201&latency=1s", "a", ""); status != 201 || time.Since(start) != time.Minute+time.Second {
			t.Errorf("query does not override: %d after %v", status, time.Since(start))
		}
		if status, _ := get(t, c, "http://api"+Path("x/z"), "a", ""); status != 200 {
			t.Errorf("a sibling is answered %d", status)
		}
	})
}

func TestACallerThatLeavesIsNoticed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *Server, _ *pipes, c *http.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api"+Path("x")+"?latency=1h", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := s.Log()[0]; got.Departed != time.Second || got.Status != StatusGone {
			t.Errorf("%+v", got)
		}
	})
}

// "whatever arrives is in the log"
func TestBadRequestsAreRefusedAndCounted(t *testing.T) {
	t.Parallel()
	s, err := Start("127.0.0.1:0", Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, target := range []string{
		"/", "/v1/", "/v1/a//b", "/v1/a%2Fb", "/v1/a/", "/v2/a", "/v1/a?latency=fast", "/v1/a?latenci=1s",
		"/v1/a?status=20", "/v1/a?times=x", "/v1/a?fail=1000", "/v1/a?retry_after=1s", "/v1/a?%zz",
	} {
		if status, _ := get(t, http.DefaultClient, "http://"+s.Addr()+target, "a", ""); status != 400 {
			t.Errorf("%s: %d, want 400", target, status)
		}
		if got := s.Log(); len(got) != i+1 || got[i].Status != 400 {
			t.Errorf("%s: log %v", target, got)
		}
	}
	for _, cost := range []string{"0", "-1", "1.5", "x", "tokens=x", "=1", "tokens=-1", "tokens=1,"} {
		if status, _ := get(t, http.DefaultClient, s.URL("a"), "a", cost); status != 400 {
			t.Errorf("cost %s: %d, want 400", cost, status)
		}
	}
}

func TestLogIsWrittenAndReadBack(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s, err := Start("127.0.0.1:0", Config{Log: &out})
	if err != nil {
		t.Fatal(err)
	}
	get(t, http.DefaultClient, s.URL("p/ü\"{}"), "a\"b", "3")
	get(t, http.DefaultClient, s.URL("p"), "c", "tokens=1500,rows=0")
	left := make(chan struct{})
	go func() {
		defer close(left)
		res, err := http.Get(s.URL("p") + "?latency=1h")
		if err == nil {
			res.Body.Close()
		}
	}()
	redistest.WaitFor(t, "the third call", 2*time.Minute, func() bool { calls, _ := s.Counts(); return calls == 3 })
	if err := s.API.Close(); err != nil {
		t.Fatal(err)
	}
	want := s.Log()
	if got := want[1]; got.Cost != 1 || !maps.Equal(got.Costs, map[string]int64{"requests": 1, "tokens": 1500, "rows": 0}) {
		t.Errorf("it costs %d, %v", got.Cost, got.Costs)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	<-left
	epoch, calls, err := ReadLog(bytes.NewReader(out.Bytes()))
	if err != nil || !epoch.Equal(s.Epoch()) || !reflect.DeepEqual(calls, want) || calls[2].Departed != Open {
		t.Errorf("read %v %v %v\nwant %v %v", epoch, calls, err, s.Epoch(), want)
	}
	for name, text := range map[string]string{"empty": "", "no epoch": "{}\n", "not JSON": out.String() + "x\n"} {
		if _, _, err := ReadLog(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAFullDiskIsTold(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	a := New(Config{Log: errWriter{full}})
	if err := a.Close(); !errors.Is(err, full) {
		t.Errorf("Close() = %v", err)
	}
}

type errWriter struct{ err error }

func (w errWriter) Write([]byte) (int, error) { return 0, w.err }

// Nothing is lost or doubled under concurrent callers, and each connection's
// calls stand in its own order.
func TestConcurrentCallersAreAllCounted(t *testing.T) {
	t.Parallel()
	s, err := Start("127.0.0.1:0", Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const callers, each = 16, 200
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			for j := range each {
				get(t, &http.Client{Transport: tr}, s.URL(fmt.Sprint("s/", i)), fmt.Sprint(j), "")
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	last := Call{}
	for _, c := range s.Log() {
		if c.Arrived < last.Arrived || c.ID != fmt.Sprint(next[c.Scope]) || !c.Succeeded() {
			t.Fatalf("%+v after %+v", c, last)
		}
		next[c.Scope]++
		last = c
	}
	if calls, ok := s.Counts(); calls != callers*each || ok != each {
		t.Errorf("counted %d calls, %d ids", calls, ok)
	}
}

func BenchmarkCalls(b *testing.B) {
	s, err := Start("127.0.0.1:0", Config{Log: io.Discard})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			res, err := c.Get(s.URL("payments/acme"))
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}
