package throttletest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis is the in-memory server that a limiter of [NewWithRedis] uses. Besides the methods here it has
// all those of a miniredis: SetError makes it answer every command with an error, Keys lists its keys.
type Redis struct {
	*miniredis.Miniredis
	t TB

	mu   sync.RWMutex
	down bool
	now  time.Time // zero until Advance or SetTime stops the clock
}

var errDown = errors.New("throttletest: connection refused, until Restart")

// Close cuts all connections and refuses new ones, like a server that is down.
func (r *Redis) Close() {
	r.mu.Lock()
	r.down = true
	r.mu.Unlock()
	r.Miniredis.Close()
}

// Restart undoes Close, with all data that the server held. The client needs up to a second to notice.
func (r *Redis) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// Advance moves the server's clock, and with it what has been spent, without
// waiting. From the first call on the clock moves by Advance and SetTime alone. That
// is for tests outside of a bubble, of Allow, Decide, Peek and Refund: what waits or
// holds leases goes by the clock of this process too, and wants a bubble.
func (r *Redis) Advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now.IsZero() {
		r.now = time.Now()
	}
	r.now = r.now.Add(d)
	r.Miniredis.SetTime(r.now)
}

// SetTime sets the server's clock to a date, for tests of calendars and of rules that hold
// in certain hours: the evening before a month ends, the night in which clocks change. From
// then on it moves by SetTime and Advance alone, and what stands at Advance holds here too.
// Keys live on until the clock has passed their time. A date before the one at hand is a
// clock that steps back, which limits survive: begin with the earliest.
func (r *Redis) SetTime(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = t
	r.Miniredis.SetTime(t)
}

// Client returns a client of the server, for packages such as asynq and policystore, that is closed
// when the test ends. It dials no socket, so it works in a bubble. Each call returns a new client.
func (r *Redis) Client() *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "miniredis:0", // never dialled
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return r.dial() },
		DialerRetries:            1, // what is down stays so
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, // it looks up a host
	})
	r.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (r *Redis) dial() (net.Conn, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.down {
		return nil, errDown
	}
	return r.Dial()
}
