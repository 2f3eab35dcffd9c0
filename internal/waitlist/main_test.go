package waitlist

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const second, ms = time.Second, time.Millisecond

var must = redistest.Must

// noon is when the scripts' clock of each test begins.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// world is a Redis with a clock in the test's hand, and processes that share it.
type world struct {
	t    *testing.T
	rdb  redis.UniversalClient
	base string
	now  atomic.Int64 // µs
}

func newWorld(t *testing.T, rdb redis.UniversalClient) *world {
	t.Helper()
	w := &world{t: t, rdb: rdb, base: redistest.Prefix(t)}
	w.now.Store(noon.UnixMicro())
	return w
}

func (w *world) clock() string        { return strconv.FormatInt(w.now.Load(), 10) }
func (w *world) pass(d time.Duration) { w.now.Add(d.Microseconds()) }

// process is a List with a policy of its own. Its own clock stands at noon.
type process struct {
	*List
	w      *world
	scopes *wire.Scopes
	log    *programs.Output
}

var processes atomic.Int64

func (w *world) process(p *policy.Policy) *process {
	scopes := wire.NewScopes(p, wire.Compiler{Base: w.base, Tolerance: ms}, func(string) time.Time { return noon }, func(*wire.Scope, *policy.Policy) any { return nil })
	written := &programs.Output{}
	return &process{w: w, scopes: scopes, log: written, List: New(Config{
		Redis: w.rdb, Scopes: scopes, Clocks: &wire.Clocks{}, Base: w.base, Timeout: redistest.Stretch(2 * second), Clock: w.clock,
		Logger: slog.New(slog.NewTextHandler(written, nil)), ID: fmt.Sprint("process-", processes.Add(1)),
	})}
}

// start is a world with one process.
func start(t *testing.T, p *policy.Policy) *process {
	t.Helper()
	return newWorld(t, redistest.Client(t)).process(p)
}

// limits makes a policy of rules by scope.
func limits(t *testing.T, unmatched policy.Unmatched, tree map[string]policy.ScopeConfig) *policy.Policy {
	t.Helper()
	p, err := policy.New(unmatched, tree)
	must(t, err)
	return p
}

// tenants is a provider p with rules of its own and of each tenant.
func tenants(t *testing.T, own, each []policy.Rule) *policy.Policy {
	t.Helper()
	return limits(t, policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: own, Scopes: map[string]policy.ScopeConfig{"*": {Rules: each}}}})
}

// perSecond is a bucket of one unit at a time.
func perSecond(name string, limit int64) policy.Rule {
	return policy.Rule{Name: name, Algorithm: policy.TokenBucket, Limit: limit, Per: second}
}

// tasks returns n tasks of a scope and queue, named after both.
func tasks(scope, queue string, n int) (list []Waiter) {
	for i := range n {
		list = append(list, Waiter{Scope: scope, Queue: queue, ID: fmt.Sprintf("%s.%s.%d", scope, queue, i)})
	}
	return list
}

// joins gives tasks places.
func (p *process) joins(list ...Waiter) []Joined {
	p.w.t.Helper()
	out, err := p.Join(p.w.t.Context(), list)
	must(p.w.t, err)
	for i, one := range out {
		if one.Err != nil || one.Free {
			p.w.t.Fatalf("%+v: %+v", list[i], one)
		}
	}
	return out
}

// dispatches grants tasks of p in some queues, all of one weight.
func (p *process) dispatches(most int, news []News, queues ...string) Dispatched {
	p.w.t.Helper()
	must(p.w.t, p.Report(p.w.t.Context(), "p", news))
	req := Request{Provider: "p", Lead: 20 * ms, Spread: 80 * ms, Max: most}
	for _, q := range queues {
		req.Serves = append(req.Serves, wire.Weighted{Queue: q, Weight: 1})
	}
	d, err := p.Dispatch(p.w.t.Context(), req)
	must(p.w.t, err)
	return d
}

func idsOf(d Dispatched) (ids []string) {
	for _, g := range d.Granted {
		ids = append(ids, g.ID)
	}
	return ids
}

// drain dispatches until no task waits, reports each as come, and returns the order.
func (p *process) drain(queues ...string) (ids []string) {
	p.w.t.Helper()
	var news []News
	for range 1000 {
		d := p.dispatches(50, news, queues...)
		news = nil
		for _, lost := range d.Overdue {
			news = append(news, News{Ref: lost, What: Unused})
		}
		for _, g := range d.Granted {
			ids, news = append(ids, g.ID), append(news, News{Ref: g.Ref(), What: Came})
		}
		if !d.Waits {
			return ids
		}
		p.w.pass(max(d.Next, ms))
	}
	p.w.t.Fatal("tasks wait for ever")
	return nil
}
