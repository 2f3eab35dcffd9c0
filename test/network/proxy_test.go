package network

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must happen.
var bound = redistest.Stretch(2 * time.Minute)

// echo is a server that sends back what it gets, and keeps it.
type echo struct {
	addr string
	got  chan byte
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	e := &echo{addr: l.Addr().String(), got: make(chan byte, 1<<20)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go e.serve(c)
		}
	}()
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		for _, b := range buf[:n] {
			e.got <- b
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// dial connects to the proxy; what is done with the connection has a bound.
func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(bound)); err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn, n int) string {
	t.Helper()
	buf := make([]byte, n)
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Fatal(err)
	}
	return string(buf)
}

// "Delay makes everything arrive so much later, in each direction"
func TestDelay(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, newEcho(t).addr)
	c := dial(t, p)
	send(t, c, "at once")
	receive(t, c, len("at once"))
	const delay = 50 * time.Millisecond
	p.Delay(delay, 0) // also for connections that are open
	began := time.Now()
	send(t, c, "late")
	receive(t, c, len("late"))
	if took := time.Since(began); took < 2*delay {
		t.Errorf("there and back took %v, less than twice %v", took, delay)
	}
}

// "Bytes keep their order, and any number of them may be under way."
func TestJitterKeepsOrder(t *testing.T) {
	t.Parallel()
	const pieces, delay = 400, 100 * time.Millisecond
	p := NewProxy(t, newEcho(t).addr)
	p.Delay(delay, delay)
	c := dial(t, p)
	var sent bytes.Buffer
	began := time.Now()
	go func() {
		for i := range pieces {
			if _, err := c.Write([]byte{byte(i)}); err != nil {
				return
			}
			<-time.After(100 * time.Microsecond) // so that the proxy reads it by itself
		}
	}()
	for i := range pieces {
		sent.WriteByte(byte(i))
	}
	if got := receive(t, c, pieces); got != sent.String() {
		t.Errorf("got %q", got)
	}
	if took := time.Since(began); took > pieces*delay { // one after the other they take twice pieces × delay
		t.Errorf("%d pieces took %v: they wait for each other", pieces, took)
	}
}

// "Cut closes all connections"
func TestCut(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, newEcho(t).addr)
	c := dial(t, p)
	send(t, c, "x")
	receive(t, c, 1)
	p.Cut()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was cut reads %v", err)
	}
	again := dial(t, p)
	send(t, again, "y")
	receive(t, again, 1)
}

// "Refuse makes every further connection fail with connection refused, until Accept.
// Open connections stay."
func TestRefuse(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, newEcho(t).addr)
	c := dial(t, p)
	send(t, c, "x")
	receive(t, c, 1)
	p.Refuse()
	// A program that another test is just starting has the listener too, until it runs.
	redistest.WaitFor(t, "connections to be refused", bound, func() bool {
		c, err := net.Dial("tcp", p.Addr())
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	send(t, c, "y")
	receive(t, c, 1)
	p.Accept()
	again := dial(t, p)
	send(t, again, "z")
	receive(t, again, 1)
}

// "Partition holds back everything, in both directions, and closes nothing: connections
// are made, and nobody answers. Heal delivers what was held back, that of senders who
// have given up included"
func TestPartition(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	c := dial(t, p)
	send(t, c, "x")
	receive(t, c, 1)
	<-e.got
	p.Partition()
	impatient := dial(t, p)
	send(t, c, "1")
	send(t, impatient, "2")
	_ = impatient.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := impatient.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read ends with %v", err)
	}
	_ = impatient.Close()
	select {
	case b := <-e.got:
		t.Errorf("%q came through", b)
	default:
	}
	p.Heal()
	if got := receive(t, c, 1); got != "1" {
		t.Errorf("got %q", got)
	}
	came := map[byte]bool{<-e.got: true, <-e.got: true}
	if !came['1'] || !came['2'] {
		t.Errorf("%v came through", came)
	}
}

// "LoseReplies loses every n-th reply of the server, of all connections together: the
// server has done what it was asked, the reply never comes, and the connection is closed."
func TestLoseReplies(t *testing.T) {
	t.Parallel()
	const asked, every = 60, 5
	server := redistest.NewServer(t)
	p := NewProxy(t, server.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, DisableIdentity: true, Protocol: 2})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := context.Background()
	if err := rdb.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	p.LoseReplies(every)
	failed := 0
	for range asked {
		if err := rdb.Incr(ctx, "n").Err(); err != nil {
			failed++
		}
	}
	p.LoseReplies(0)
	n, err := rdb.Get(ctx, "n").Int()
	if err != nil {
		t.Fatal(err)
	}
	// A connection that is made anew greets the server, whose reply counts too.
	if lost := p.Lost(); lost == 0 || failed != lost || lost < asked/every || n < asked-failed || n > asked {
		t.Errorf("%d of %d calls failed, %d replies were lost, and the server counts %d", failed, asked, lost, n)
	}
	if n == asked-failed {
		t.Error("what failed was not done: no reply was lost")
	}
}

// A scanner finds where each reply begins, wherever the pieces end.
func TestReplyScanner(t *testing.T) {
	t.Parallel()
	replies := []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$-1\r\n", "$0\r\n\r\n", "$6\r\na\r\nb\r\n\r\n", "*-1\r\n", "*0\r\n",
		"*2\r\n$1\r\na\r\n*2\r\n:1\r\n*1\r\n+x\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "=5\r\ntxt:a\r\n",
		"!5\r\nERR a\r\n", "%2\r\n+a\r\n*2\r\n:1\r\n:2\r\n+b\r\n%0\r\n", "~2\r\n:1\r\n:2\r\n", ">3\r\n+message\r\n+c\r\n$2\r\nhi\r\n", "+last\r\n",
	}
	var all []byte
	var want []int
	for _, r := range replies {
		want = append(want, len(all))
		all = append(all, r...)
	}
	for size := 1; size <= len(all); size++ {
		var s replyScanner
		var got []int
		for from := 0; from < len(all); from += size {
			for _, at := range s.starts(all[from:min(from+size, len(all))]) {
				got = append(got, from+at)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("in pieces of %d: %d replies, want %d", size, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("in pieces of %d: reply %d begins at %d, want %d", size, i, got[i], want[i])
			}
		}
	}
}
