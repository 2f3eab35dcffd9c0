package redistest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Miniredis returns a Redis written in Go whose keys expire by the clock, and a client of it, both closed when t ends. Client and
// server speak over a pipe in memory, so that both work in a testing/synctest bubble; give that bubble's own t. It has no
// address: further clients use MiniredisOptions.
func Miniredis(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(func() {
		dials.Lock()
		m.CtxCancel() // no client dials it from now on
		dials.Unlock()
		m.Close()
	})
	return m, closing(t, redis.NewClient(MiniredisOptions(m)))
}

// dials is read-locked while a client dials a miniredis. A limiter's background work may dial when its test is over: while Close
// waits for the connections, that is a data race in miniredis, and after it the server would start again.
var dials sync.RWMutex

func dial(m *miniredis.Miniredis) (net.Conn, error) {
	dials.RLock()
	defer dials.RUnlock()
	if m.Ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	c, err := m.Dial()
	if err != nil {
		return nil, err
	}
	return newSocket(c), nil
}

// MiniredisOptions returns the options of a client that reaches m in memory. It has connections for
// all that a test does at once, however few processors there are: who waits for one takes a timer that
// go-redis shares among all clients of a process, and those of another synctest bubble must not be used.
func MiniredisOptions(m *miniredis.Miniredis) *redis.Options {
	return &redis.Options{
		Addr:                     "miniredis:0", // never dialled
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return dial(m) },
		PoolSize:                 1000,
		ReadTimeout:              Stretch(0), // its Lua takes seconds where processors are busy; a second try would change nothing more
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}
