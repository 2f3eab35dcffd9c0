package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkLongest says for how long the scripts of those who wait hold Redis up where much waits
// and much is on its way: the longest call of each.
func BenchmarkLongest(b *testing.B) {
	b.Run("longest", func(b *testing.B) {
		for b.Loop() {
			c := newCrowded(b, 10_000, 100_000, 2000)
			c.run()
		}
	})
}

// logFrom is what a script must take for its call to be among the longest here: less than the bar,
// and more than the commands that it calls take.
const logFrom = 100 * time.Microsecond

// tooLong is what none should take.
const tooLong = 2 * time.Millisecond

// crowded is a provider whose tenants wait, with a long queue among theirs, and many tasks on
// their way.
type crowded struct {
	*testing.B
	rdb          *redis.Client
	l            *throttle.Limiter
	tenants      []string
	inQueue, out int
	onTheWay     []throttle.Granted
	overdue      []throttle.WaiterRef
	tasks        int
}

func newCrowded(b *testing.B, tenants, inQueue, out int) *crowded {
	b.Helper()
	if !long() {
		tenants, inQueue, out = tenants/20, inQueue/100, out/20
	}
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
	b.Cleanup(func() { _ = rdb.Close() })
	return &crowded{
		B: b, rdb: rdb, l: limiterOf(b, rdb, crowdUnder(0)), tenants: numbered("p/t%05d", tenants), inQueue: inQueue, out: out,
	}
}

// crowdUnder has tenants at 5/s each, under so many a second together.
func crowdUnder(together int64) map[string]policy.ScopeConfig {
	return map[string]policy.ScopeConfig{"p": {
		Rules:  []policy.Rule{sliding("account", together, time.Second)},
		Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{bucket("tenant", 5, time.Second, 5)}}},
	}}
}

// run adds a row for each script and situation.
func (c *crowded) run() {
	c.Helper()
	c.join("p/first") // Redis compiles the script
	c.log(fmt.Sprintf("longest of each script: %d tasks of as many tenants join", len(c.tenants)), func() {
		c.join(c.tenants...)
	})
	for range 2 { // so that a tenant whose task has come waits on
		c.join(c.tenants...)
	}
	for n := 0; n < c.inQueue; n += 1000 {
		c.join(repeated("p/long", min(1000, c.inQueue-n))...)
	}
	place := fmt.Sprintf("longest of each script: %d out, %d tenants wait, %d in one queue", c.out, len(c.tenants), c.inQueue)
	c.under(40_000)
	for tries := 0; len(c.onTheWay) < c.out; tries++ {
		if tries == 1000 {
			c.Fatalf("%d are out after %d dispatches", len(c.onTheWay), tries)
		}
		c.dispatch(throttle.DispatchRequest{CheckAll: tries == 0})
	}
	c.log(place, c.rounds)
	c.log(place+", a tighter policy over them", func() {
		c.under(100)
		c.dispatch(throttle.DispatchRequest{CheckAll: true})
		c.rounds()
	})
}

func repeated(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

// under puts another limit over all.
func (c *crowded) under(together int64) {
	c.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, crowdUnder(together))
	if err != nil {
		c.Fatal(err)
	}
	c.l.SetPolicy(policy)
}

// log adds rows of the longest scripts that do something.
func (c *crowded) log(measure string, do func()) {
	c.Helper()
	countAnew(c.B, c.rdb, logFrom)
	do()
	for _, s := range longestScripts(c.B, c.rdb) {
		row := figures.NewRow(measure, s.name)
		row.Longest = s.longest
		if s.tooLong > 0 {
			row.Note = fmt.Sprintf("%d times above %v", s.tooLong, tooLong)
		}
		table.add(row)
	}
}

// rounds has tasks come and go, as many as are granted.
func (c *crowded) rounds() {
	c.Helper()
	n := 300
	if !long() {
		n = 20
	}
	for i := range n {
		mine := c.tenants[i*7%len(c.tenants)]
		c.join(mine)
		c.ask(throttle.Request{Scope: mine, Turn: throttle.Turn{WaiterID: c.ticket()}})
		c.come(8)
		c.dispatch(throttle.DispatchRequest{Claimed: c.leave(8), Unused: c.leave(8)})
	}
	if _, err := c.l.Inspect(c.Context(), c.tenants[0]); err != nil {
		c.Fatal(err)
	}
}

// join has a task of each of the scopes join those who wait.
func (c *crowded) join(scopes ...string) {
	c.Helper()
	asks := make([]throttle.Waiter, len(scopes))
	for i, scope := range scopes {
		asks[i] = throttle.Waiter{Scope: scope, ID: c.ticket()}
	}
	if _, err := c.l.Waitlist().Join(c.Context(), asks, lead, 0); err != nil {
		c.Fatal(err)
	}
}

func (c *crowded) ticket() string {
	c.tasks++
	return queue.Ticket(queue.DefaultQueue, fmt.Sprintf("task%07d", c.tasks))
}

// lead and spread are a worker's, and most is how many it grants at once beside Redis.
const (
	lead, spread = 20 * time.Millisecond, 80 * time.Millisecond
	most         = 18
)

// dispatch grants some, and keeps who is on the way and who has not come in time.
func (c *crowded) dispatch(req throttle.DispatchRequest) {
	c.Helper()
	req.Provider, req.Lead, req.Spread, req.Max = "p", lead, spread, most
	req.Claimed = append(req.Claimed, c.overdue...)
	d, err := c.l.Waitlist().Dispatch(c.Context(), req)
	if err != nil {
		c.Fatal(err)
	}
	c.onTheWay, c.overdue = append(c.onTheWay, d.Granted...), d.Overdue
}

// leave takes the first of those on their way out.
func (c *crowded) leave(n int) (places []throttle.WaiterRef) {
	n = min(n, len(c.onTheWay))
	for _, g := range c.onTheWay[:n] {
		places = append(places, g.WaiterRef)
	}
	c.onTheWay = c.onTheWay[n:]
	return places
}

// come has the first of those on their way ask, and give back what they were granted.
func (c *crowded) come(n int) {
	c.Helper()
	for _, p := range c.leave(n) {
		if d := c.ask(throttle.Request{Scope: p.Scope, Turn: throttle.Turn{WaiterID: p.ID}, MaxDelay: time.Second}); d.Allowed {
			if err := c.l.Refund(c.Context(), d.Grant); err != nil {
				c.Fatal(err)
			}
		}
	}
}

func (c *crowded) ask(req throttle.Request) throttle.Decision {
	c.Helper()
	req.Turn.DispatchLead = lead
	d, err := c.l.Decide(c.Context(), req)
	if err != nil {
		c.Fatal(err)
	}
	return d
}
