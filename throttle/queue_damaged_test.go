package throttle

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// damagedPolicy has rules of two levels, and weights at the second.
func damagedPolicy(t *testing.T) *policy.Policy {
	t.Helper()
	own := policy.ScopeConfig{Rules: []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: 5, Per: sec}}, Shares: map[string]policy.Share{"x": {Weight: 2}, "y": {Weight: 1}}}
	return limitsOf(t, map[string]policy.ScopeConfig{"p": {
		Rules:  []policy.Rule{{Name: "all", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 10}},
		Scopes: map[string]policy.ScopeConfig{"*": own},
	}})
}

// waiters are those who wait when a provider's keys are damaged.
type waiters struct {
	*bench
	tasks   map[string]Request // by ticket
	started map[string]int
}

// begin has several scopes wait, with lanes, some of them granted and some parked.
func begin(b *bench) *waiters {
	b.t.Helper()
	w := &waiters{bench: b, tasks: map[string]Request{}, started: map[string]int{}}
	for _, scope := range []string{"p/y", "p/z"} {
		b.decide(Request{Scope: scope, Cost: 5})
	}
	for i := range 4 {
		w.ask(Request{Scope: "p/a/x", Turn: Turn{WaiterID: fmt.Sprint("ax", i), Lane: []string{"low", "high"}[i%2], Stride: 1 + i%2}})
		w.ask(Request{Scope: "p/a/y", Turn: Turn{WaiterID: fmt.Sprint("ay", i)}})
		w.ask(Request{Scope: "p/b", Turn: Turn{WaiterID: fmt.Sprint("g/b", i)}})
		w.ask(Request{Scope: "p/c", Turn: Turn{WaiterID: fmt.Sprint("c", i)}, Cost: 2})
	}
	b.pass(300 * ms)
	if d := b.dispatch(DispatchRequest{Max: 2, StalledGroups: []string{"g/"}}); len(d.Granted) != 2 || !d.Parked {
		b.t.Fatalf("%+v", d)
	}
	return w
}

func (w *waiters) ask(req Request) {
	w.t.Helper()
	w.tasks[req.Turn.WaiterID] = req
	if d := w.decide(req); !d.Position.Waits {
		w.t.Fatalf("%+v", d)
	}
}

// goOn dispatches until nobody waits, and has those come by themselves then who have not started. It returns how many
// have come so.
func (w *waiters) goOn() (alone int) {
	w.t.Helper()
	var over []WaiterRef
	start := func(req Request) {
		w.t.Helper()
		req.MaxDelay = sec
		if d := w.decide(req); d.Allowed {
			w.started[req.Turn.WaiterID]++
		}
	}
	drain := func() {
		w.t.Helper()
		for range 60 {
			w.pass(200 * ms)
			back, err := w.Waitlist().Parked(ctx, "p", 0, 50)
			noError(w.t, err)
			d := w.dispatch(DispatchRequest{Max: 8, Unused: over, Unpark: back})
			over = d.Overdue
			for _, g := range d.Granted {
				if req, known := w.tasks[g.ID]; known {
					start(req)
				}
			}
		}
	}
	drain()
	for ticket, req := range w.tasks {
		if w.started[ticket] == 0 {
			alone++
			start(req)
		}
	}
	drain()
	for ticket := range w.tasks {
		if n := w.started[ticket]; n != 1 {
			w.t.Errorf("%s was started %d times", ticket, n)
		}
	}
	return alone
}

// damage is one thing that goes wrong with what is kept of those who wait.
type damage struct {
	what string
	do   func()
	most int // how many lose their places by it
}

// damagesOf are those of each value that is kept: that it is too short, or text, and keys of another type.
func damagesOf(b *bench) (all []damage) {
	b.t.Helper()
	set := func(key, field, value string, most int) {
		all = append(all, damage{fmt.Sprintf("%s %q is %q", key, field, value), func() { b.rdb.HSet(ctx, key, field, value) }, most})
	}
	for _, key := range b.rdb.Keys(ctx, b.provider("p")+"*!*").Val() {
		most := 2 // who was granted
		switch {
		case strings.HasSuffix(key, "!upstream"):
			continue
		case strings.HasSuffix(key, "!queue"), strings.HasSuffix(key, "!parked"):
			most = 4
		}
		all = append(all, damage{key + " is of another type", func() { b.rdb.Del(ctx, key); b.rdb.Set(ctx, key, "text", 0) }, most})
		if b.rdb.Type(ctx, key).Val() == "hash" {
			for field, v := range b.rdb.HGetAll(ctx, key).Val() {
				if field == "@" || field[0] == '=' { // times and ids, of which any will do
					continue
				}
				set(key, field, "text", 1)
				set(key, field, "", 1)
				set(key, field, v[:len(v)/2], 1)
			}
			set(key, "text", "text", 0)
			continue
		}
		for _, z := range b.rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
			member := text(z.Member)
			all = append(all, damage{fmt.Sprintf("%s %q is short", key, member), func() {
				b.rdb.ZRem(ctx, key, member)
				b.rdb.ZAdd(ctx, key, redis.Z{Member: member[:len(member)/2], Score: z.Score})
			}, 1})
		}
	}
	return all
}

// "Whatever value of those who wait is damaged, the order is made anew from the queues": nobody loses a place but those
// whose own it was, and they get one when they come.
func TestDamagedValues(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, damagedPolicy(t), func(b *bench) {
		begin(b)
		all := damagesOf(b)
		if len(all) < 60 {
			b.t.Fatalf("%d damages", len(all))
		}
		each := 1
		if strings.Contains(b.t.Name(), "miniredis") {
			each = 16 // it takes a tenth of a second for one
		}
		if testing.Short() {
			each *= 3
		}
		for i, d := range all {
			if i%each != 0 {
				continue
			}
			b.t.Run(d.what, func(t *testing.T) {
				b.rdb.Del(ctx, b.rdb.Keys(ctx, b.cfg.Prefix+":*").Val()...)
				one := newBench(t, b.rdb, Config{Logger: slog.New(slog.DiscardHandler), Prefix: b.cfg.Prefix}, b.Policy())
				w := begin(one)
				d.do()
				if alone := w.goOn(); alone > d.most {
					t.Errorf("%d come by themselves, of %d at most", alone, d.most)
				}
			})
		}
	})
}

// A rule's own state is nobody's to drop: the error is what it was, and what cannot be repaired is not
// looked through with each call.
func TestNothingToRepair(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, damagedPolicy(t), func(b *bench) {
		w := begin(b)
		repairs := counting(b.rdb, func(cmd redis.Cmder) bool { return cmd.Name() == "evalsha" && cmd.Args()[1] == lua.Repair.SHA() })
		state := b.provider("p") + ":all"
		b.rdb.Del(ctx, state)
		b.rdb.RPush(ctx, state, "foreign")
		began := time.Now()
		for range 20 {
			if _, err := b.Decide(ctx, w.tasks["ay3"]); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
				b.t.Fatalf("%v", err)
			}
		}
		if n, most := repairs.Load(), 1+int64(time.Since(began)/repairPause); n < 1 || n > most {
			b.t.Errorf("it was looked through %d times", n)
		}
		if n := b.rdb.LLen(ctx, state).Val(); n != 1 {
			b.t.Errorf("the foreign key has %d entries", n)
		}
		b.rdb.Del(ctx, state)
		w.goOn()
	})
}
