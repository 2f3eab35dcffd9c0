package throttle

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// cable is the network between a client and a server, as it can go wrong.
type cable struct {
	dial func() (net.Conn, error)
	lose atomic.Int32 // so many replies to scripts get lost, with their connection
	hung atomic.Bool  // nothing arrives any more, either way
	down atomic.Bool  // connections are refused
}

// through returns opts with its connections led over w.
func (w *cable) through(opts *redis.Options) *redis.Options {
	if w.dial = func() (net.Conn, error) { return net.Dial("tcp", opts.Addr) }; opts.Dialer != nil {
		dialer := opts.Dialer
		w.dial = func() (net.Conn, error) { return dialer(context.Background(), "tcp", opts.Addr) }
	}
	opts.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if w.down.Load() {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
		}
		conn, err := w.dial()
		return &wired{Conn: conn, cable: w}, err
	}
	opts.DialerRetries = 1
	return opts
}

type wired struct {
	net.Conn
	cable  *cable
	script atomic.Bool
}

func (c *wired) Write(b []byte) (int, error) {
	if c.cable.down.Load() {
		c.Close()
		return 0, io.ErrClosedPipe
	}
	if c.cable.hung.Load() {
		return len(b), nil
	}
	c.script.Store(bytes.Contains(b, []byte("evalsha")) || bytes.Contains(b, []byte("\r\neval\r\n")))
	return c.Conn.Write(b)
}

func (c *wired) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.script.Load() && c.cable.lose.Add(-1) >= 0 {
		c.Close()
		return 0, io.EOF
	}
	return n, err
}

// gate is a hook that counts round trips of scripts and, while it is shut, keeps them from
// coming back: the server has done its work, the client does not know.
type gate struct {
	trips atomic.Int64
	lose  atomic.Int32 // so many replies get lost on their way from the gate

	mu   sync.Mutex
	shut chan struct{}
	held atomic.Int64 // round trips that wait at the gate
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// step lets those go who wait at the gate, and keeps it shut for whoever comes later.
func (g *gate) step() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = make(chan struct{})
}

// pass waits at the gate, and returns what then becomes of the reply.
func (g *gate) pass() error {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		g.held.Add(1)
		<-shut
		g.held.Add(-1)
	}
	if g.lose.Load() > 0 && g.lose.Add(-1) >= 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// through counts a round trip, and has its reply wait.
func (g *gate) through(cmd redis.Cmder, send func() error) error {
	if !runsScript(cmd) {
		return send()
	}
	g.trips.Add(1)
	err := send()
	return cmp.Or(g.pass(), err)
}

// counting counts those of a client's commands that are of a kind.
func counting(rdb redis.UniversalClient, is func(redis.Cmder) bool) *atomic.Int64 {
	n := new(atomic.Int64)
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if is(cmd) {
			n.Add(1)
		}
		return send()
	}))
	return n
}

// runsScript tells scripts from what a client sends when it connects.
func runsScript(cmd redis.Cmder) bool { return cmd.Name() == "evalsha" || cmd.Name() == "eval" }

// gated puts a gate into a client.
func gated(rdb redis.UniversalClient) *gate {
	g := &gate{}
	rdb.AddHook(redistest.Each(g.through))
	return g
}

// answering is a client to which every script answers with the same: an error, or a value.
func answering(t testing.TB, answer any) *redis.Client {
	t.Helper()
	rdb := clientOf(t, optionsOf(t))
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if !runsScript(cmd) {
			return send()
		}
		if err, fails := answer.(error); fails {
			return err
		}
		cmd.(*redis.Cmd).SetVal(answer)
		return nil
	}))
	return rdb
}
