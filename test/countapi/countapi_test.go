package countapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

var must = redistest.Must

// pipes is a listener whose connections live in memory, as a bubble needs. Closing the channel ends it.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }
func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	c, s := net.Pipe()
	p <- s
	return c, nil
}

// bubble runs a Server in memory, under the bubble's clock.
func bubble(t *testing.T, f func(*testing.T, *Server, pipes, *http.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := make(pipes)
		s, tr := Serve(p, nil), &http.Transport{DialContext: p.dial}
		f(t, s, p, &http.Client{Transport: tr})
		tr.CloseIdleConnections()
		must(t, s.Close())
	})
}

// get sends one call and returns the status and the Retry-After of its answer.
func get(t *testing.T, c *http.Client, url, id, cost string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("body"))
	must(t, err)
	req.Header.Set("X-Task-Id", id)
	if cost != "" {
		req.Header.Set("X-Task-Cost", cost)
	}
	res, err := c.Do(req)
	must(t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	must(t, err)
	return res.StatusCode, res.Header.Get("Retry-After")
}

func TestCallsAreLoggedWithTheirTimes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *Server, _ pipes, c *http.Client) {
		const at = 6*time.Second + 20*time.Millisecond
		<-time.After(5 * time.Second)
		get(t, c, "http://api"+Path("payments/acme")+"?latency=20ms", "a", "")
		<-time.After(time.Second)
		for range 2 {
			get(t, c, "http://api"+Path("payments/acme")+"?fail=503&retry_after=2", "b", "7")
		}
		get(t, c, "http://api"+Path("payments/a b%:*?é"), "c", "")
		get(t, c, "http://api"+Path("p")+"?pace=5", "d", "")
		want := []Call{
			{1, "a", "payments/acme", 1, 5 * time.Second, 5*time.Second + 20*time.Millisecond, 200, nil},
			{2, "b", "payments/acme", 7, at, at, 503, nil},
			{3, "b", "payments/acme", 7, at, at, 200, nil},
			{4, "c", "payments/a b%:*?é", 1, at, at, 200, nil},
			{5, "d", "p", 1, at, at, 400, nil},
		}
		if got := s.Log(); !reflect.DeepEqual(got, want) {
			t.Errorf("log\n%v\nwant\n%v", got, want)
		}
		if calls, ok := s.Counts(); calls != 5 || ok != 3 {
			t.Errorf("Counts() = %d, %d, want 5, 3", calls, ok)
		}
		if status, after := get(t, c, "http://api"+Path("p")+"?fail=429&retry_after=2", "e", ""); status != 429 || after != "2" {
			t.Errorf("answered %d, Retry-After %s", status, after)
		}
		s.Fail("p/down", at+time.Second, at+2*time.Second)
		for _, want := range []int{200, 503, 200} {
			if status, after := get(t, c, "http://api"+Path("p/down"), "f", ""); status != want || after != "" {
				t.Errorf("answered %d, Retry-After %q; want %d", status, after, want)
			}
			get(t, c, "http://api"+Path("p/up")+"?latency=1s", "g", "")
		}
		if calls, ok := s.Counts(); calls != 12 || ok != 5 {
			t.Errorf("Counts() = %d, %d, want 12, 5", calls, ok)
		}
	})
}

func TestArrivalIsTheFirstByte(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *Server, p pipes, _ *http.Client) {
		conn, _ := p.dial(t.Context(), "", "")
		defer conn.Close()
		in := bufio.NewReader(conn)
		for i := range 3 {
			<-time.After(time.Second)
			for _, part := range []string{
				"P", "OST /v1/x/y HTTP/1.1\r\nHost: a\r\n", "Content-Length: 6\r\n\r\nabc", "def",
			} {
				_, err := io.WriteString(conn, part)
				must(t, err)
				<-time.After(time.Second)
			}
			res, err := http.ReadResponse(in, nil)
			must(t, err)
			res.Body.Close()
			first := time.Duration(i*5+1) * time.Second
			got := s.Log()[i]
			if got.Arrived != first || got.Departed != first+3*time.Second {
				t.Errorf("call %d from %v to %v, want from %v to %v", i, got.Arrived, got.Departed, first, first+3*time.Second)
			}
		}
	})
}

// "a busy machine does not move it"
func TestArrivalIsTheKernels(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	epoch := time.Now()
	stamped := stampedListener{l, func() time.Duration { return time.Since(epoch) }}
	client, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer client.Close()
	server, err := stamped.Accept()
	must(t, err)
	defer server.Close()
	conn := server.(*stampedConn)
	if conn.kernel == nil {
		t.Skip("only Linux notes when bytes arrive")
	}
	late := 0
	for range 10 { // the kernel begins to note some time after it was asked to
		_, err := io.WriteString(client, "a")
		must(t, err)
		sent := time.Since(epoch)
		<-time.After(20 * time.Millisecond)
		_, err = conn.Read(make([]byte, 8))
		must(t, err)
		if at, ok := conn.take(); !ok || at > sent {
			late++
		}
	}
	if late > 5 {
		t.Errorf("%d of 10 bytes were noted after they had been sent", late)
	}
	client.Close()
	if n, err := conn.Read(make([]byte, 8)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read() = %d, %v after the end, want io.EOF", n, err)
	}
}

func TestLogIsWrittenAndReadBack(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := Serve(l, &out)
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
	want := s.Log()
	if got := want[1]; got.Cost != 1 || !maps.Equal(got.Costs, map[string]int64{"requests": 1, "tokens": 1500, "rows": 0}) {
		t.Errorf("it costs %d, %v", got.Cost, got.Costs)
	}
	must(t, errors.Join(s.Close(), s.Close()))
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
