package traps

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// undecided fails the test unless the limiter says that nothing was decided.
func (l limiter) undecided(what string) {
	l.w.Helper()
	d, err := l.Allow(context.Background(), "p/x")
	if !errors.Is(err, throttle.ErrUnavailable) || d.Allowed || !d.Grant.Zero() {
		l.w.Errorf("%s: %+v, %v", what, d, err)
	}
}

// A key of another type in the way is an error, never a grant; it is
// left alone, and no other rule is charged.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(5, 60*sec), func(w *world, rule policy.Rule) {
		ctx := context.Background()
		l := w.limiter(rule)
		l.take(1)
		keys := w.keys()
		key := keys[0]
		if strings.Contains(key, "@") {
			key = keys[1]
		}
		w.rdb.Del(ctx, keys...)
		w.rdb.SAdd(ctx, key, "somebody else's")
		other := policy.Rule{Name: "other", Algorithm: policy.SlidingWindow, Limit: 5, Per: hour}
		l.undecided("alone")
		w.limiter(other, rule).undecided("after another rule")
		w.limiter(rule, other).undecided("before another rule")
		if now := w.keys(); len(now) != 1 || !w.rdb.SIsMember(ctx, key, "somebody else's").Val() {
			w.Errorf("it left %q", now)
		}
	})
}

// A Redis that is full or a replica decides nothing, and what it
// refused was not charged.
func TestRefusesWrites(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]struct{ on, off [2]string }{
		"full":    {[2]string{"maxmemory", "1"}, [2]string{"maxmemory", "0"}},
		"replica": {[2]string{"replicaof", "127.0.0.1 1"}, [2]string{"replicaof", "no one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			rdb := redistest.NewServer(t).Client(t)
			w := newWorld(t, rdb, nil)
			turn := func(s [2]string) {
				var err error
				if s[0] == "replicaof" {
					host, port, _ := strings.Cut(s[1], " ")
					err = rdb.Do(ctx, "replicaof", host, port).Err()
				} else {
					err = rdb.ConfigSet(ctx, s[0], s[1]).Err()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			w.at(0)
			for _, rule := range kinds(5, hour) {
				w.anew()
				l := w.limiter(rule)
				turn(state.on)
				for range 3 {
					l.undecided(rule.Name)
				}
				turn(state.off)
				if got := l.admitted(9); got != 5 {
					t.Errorf("%s: %d of 5 afterwards", rule.Name, got)
				}
			}
		})
	}
}

// silent is a server that takes connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return ln.Addr().String()
}

// What an outage lets through is what each rule says, closed unless it
// says otherwise; a time-out lets nothing through, and the answer tells that
// Redis did not decide.
func TestOutage(t *testing.T) {
	t.Parallel()
	silentAddr := silent(t)
	for _, test := range []struct {
		policies []policy.FailurePolicy
		open     bool
	}{
		{[]policy.FailurePolicy{""}, false},
		{[]policy.FailurePolicy{policy.FailClosed}, false},
		{[]policy.FailurePolicy{policy.FailOpen}, true},
		{[]policy.FailurePolicy{policy.FailOpen, policy.FailClosed}, false},
		{[]policy.FailurePolicy{policy.FailOpen, ""}, false},
		{[]policy.FailurePolicy{policy.FailShare}, false}, // nobody has been counted
	} {
		for name, addr := range map[string]string{"nothing listens": "127.0.0.1:1", "nothing answers": silentAddr} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var rules []policy.Rule
				for i, p := range test.policies {
					rule := kinds(5, 60*sec)[i]
					rule.OnRedisError = p
					rules = append(rules, rule)
				}
				rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
				t.Cleanup(func() { _ = rdb.Close() })
				w := &world{T: t, rdb: rdb, clock: &clock{}, prefix: "x"}
				l, err := throttle.New(rdb, w.policy(rules...), throttle.Config{Timeout: 200 * ms})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for range 3 {
					d, err := l.Allow(context.Background(), "p/x")
					if d.Allowed != test.open || d.Allowed && (!d.Degraded || err != nil) ||
						!d.Allowed && !errors.Is(err, throttle.ErrUnavailable) {
						t.Errorf("%v: %+v, %v", test.policies, d, err)
					}
				}
				if took := time.Since(began); took > 10*sec {
					t.Errorf("three decisions of at most 200ms took %v", took)
				}
			})
		}
	}
}

// deafConn loses the next reply to a script, and the connection with it.
type deafConn struct {
	net.Conn
	lose   *atomic.Int32
	script atomic.Bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	c.script.Store(bytes.Contains(b, []byte("evalsha")))
	return c.Conn.Write(b)
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.script.Load() && c.lose.Add(-1) >= 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// A script that is sent again because its reply was lost is charged
// once, and so is one whose caller asks again under the same attempt id.
func TestLostReply(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(20, hour), func(w *world, rule policy.Rule) {
		w.at(0)
		w.limiter(rule).giveBack(w.limiter(rule).take(1)) // so that the script is known
		var lose atomic.Int32
		opts := *w.rdb.Options()
		opts.PoolSize = 1
		dial := opts.Dialer
		opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &deafConn{Conn: conn, lose: &lose}, nil
		}
		opts.MaxRetries = 3
		rdb := redis.NewClient(&opts)
		defer func() { _ = rdb.Close() }()
		if w.mini == nil {
			rdb.AddHook(w.clock)
		}
		l := w.limiterOn(rdb, w.policy(rule))
		for i := range 10 {
			lose.Store(2)
			if d := l.take(1); !d.Allowed {
				w.Fatalf("call %d: %+v", i, d)
			}
			if left := lose.Load(); left >= 0 {
				w.Fatalf("%d replies were not lost", left+1)
			}
		}
		if left := l.left(); left != 10 {
			w.Errorf("%d of 20 are left after 10 calls", left)
		}
		id := throttle.Request{ID: "the same"}
		for range 5 {
			if d := l.decide(id); !d.Allowed {
				w.Errorf("%+v", d)
			}
		}
		if left := l.left(); left != 9 {
			w.Errorf("%d left after one attempt that was sent five times", left)
		}
	})
}

// A Redis that has forgotten the scripts is taught them again, by
// whoever meets it, alone or in a pipeline; what was spent stays.
func TestUnknownScript(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		if w.mini == nil {
			w.rdb = redistest.NewServer(w.T).Client(w.T)
			w.rdb.AddHook(w.clock)
		}
		w.at(0)
		l, got := w.limiter(rates(50, hour)...), 0
		for range 10 {
			w.rdb.ScriptFlush(context.Background())
			got += attack(w, []limiter{l}, 20)
		}
		if got != 50 {
			w.Errorf("%d of 50", got)
		}
	})
}

// A Redis that lost everything, or never had anything, needs nobody
// to set it up.
func TestForgetful(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	w := newWorld(t, rdb, nil)
	w.at(0)
	l := w.limiter(kinds(3, hour)...)
	for range 3 {
		if got := l.admitted(5); got != 3 {
			t.Errorf("%d of 3", got)
		}
		if err := rdb.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A replica has the same state as its master and keeps it as long:
// it runs no script by a clock of its own.
func TestReplicated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	master := redistest.NewServer(t, redistest.Options{Args: []string{"--repl-diskless-sync-delay", "0"}})
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := redistest.NewServer(t, redistest.Options{Args: []string{"--replicaof", host, port}}).Client(t)
	w := newWorld(t, master.Client(t), nil)
	redistest.WaitFor(t, "the replica to follow", bound, func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	l := w.limiter(kinds(3, 60*sec)...)
	l.giveBack(l.take(1))
	l.admitted(5)
	there := *w
	there.rdb = replica
	want := w.state()
	redistest.WaitFor(t, "the replica to have the same", bound, func() bool { return there.state() == want })
}

// A refusal is not worth a line in the server's log.
func TestQuietLog(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t, redistest.Options{Args: []string{"--loglevel", "verbose"}})
	w := newWorld(t, server.Client(t), nil)
	w.at(0)
	l := w.limiter(kinds(1, hour)...)
	l.admitted(2)
	lines := func() int {
		text, err := os.ReadFile(filepath.Join(server.Dir(), "redis.log"))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(text, []byte("\n"))
	}
	before := lines()
	l.admitted(500)
	if after := lines(); after > before+20 { // verbose has a line of its own now and then
		t.Errorf("500 refusals wrote %d lines", after-before)
	}
}

// Callers one after the other share a connection.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		var dials atomic.Int32
		opts := *w.rdb.Options()
		dial := opts.Dialer
		opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, addr)
		}
		rdb := redis.NewClient(&opts)
		defer func() { _ = rdb.Close() }()
		l := w.limiterOn(rdb, w.policy(kinds(5, hour)...))
		l.admitted(200)
		if n := dials.Load(); n != 1 {
			w.Errorf("%d connections for 200 calls in a row", n)
		}
	})
}
