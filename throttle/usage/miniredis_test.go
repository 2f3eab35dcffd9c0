package usage

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// inMemory returns a miniredis and a client that may send a large pipeline to it.
func inMemory(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m, _ := redistest.Miniredis(t)
	opts := redistest.MiniredisOptions(m)
	dial := opts.Dialer
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newBuffered(c), nil
	}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return m, rdb
}

// buffered is a connection whose writes do not wait for the other side to read, as
// those of a socket do not: a pipe in memory has no buffer, and of a pipeline that is
// longer than the server's the replies would have to be read while it is written.
type buffered struct {
	net.Conn
	writes chan []byte
	closed chan struct{}
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, writes: make(chan []byte, 1000), closed: make(chan struct{})}
	go func() {
		for {
			select {
			case p := <-b.writes:
				if _, err := c.Write(p); err != nil {
					return
				}
			case <-b.closed:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.writes <- bytes.Clone(p)
	return len(p), nil
}

func (b *buffered) Close() error {
	select {
	case <-b.closed:
	default:
		close(b.closed)
	}
	return b.Conn.Close()
}
