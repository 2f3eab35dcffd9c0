package throttle

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// damage is one thing that goes wrong with what a provider's turns keep.
type damage struct {
	what string
	do   func(b *bench)
	hits func(p Place) bool // whose own place is in it; nil for nobody's
}

// damagedPolicy has rules of two levels, and weights at the second.
func damagedPolicy(t *testing.T) *Policy {
	t.Helper()
	own := Node{Rules: []Rule{{Name: "own", Algorithm: SlidingWindow, Limit: 5, Per: sec}}, Shares: map[string]Share{"x": {Weight: 2}, "y": {Weight: 1}}}
	p, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {
		Rules:  []Rule{{Name: "all", Algorithm: TokenBucket, Limit: 10, Per: sec, Burst: 10}},
		Scopes: map[string]Node{"*": own},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// waiters are those who wait when a provider's keys are damaged.
type waiters struct {
	*bench
	tasks   []Request // in the order in which they came
	out     []Place   // those who were released then
	started []Place
	alone   map[Place]bool // who came by its own queue
	gone    []Place        // what was released and is no task
	over    bool           // nobody waits, as of the last look
}

func at(r Request) Place { return Place{Scope: r.Scope, Ticket: r.Ticket} }

// begin has several scopes wait, with lanes, some of them released and some parked, an API that
// has told something, and slots of one whose line was emptied.
func begin(b *bench) *waiters {
	b.t.Helper()
	w := &waiters{bench: b, alone: map[Place]bool{}}
	b.heed("p/d", turnedDown(600*sec))
	b.heed("p/d", owns(3, 60*sec))
	for _, scope := range []string{"p/y", "p/z"} {
		b.decide(Request{Scope: scope, Cost: 5})
	}
	for i := range 4 {
		w.ask(Request{Scope: "p/a/x", Ticket: fmt.Sprint("ax", i)})
		w.ask(Request{Scope: "p/a/y", Ticket: fmt.Sprint("ay", i)})
		w.ask(Request{Scope: "p/b/x", Ticket: fmt.Sprint("bx", i), Lane: fmt.Sprint("l", i%2), Stride: 1 + 2*(i%2)})
		w.ask(Request{Scope: "p/c", Ticket: fmt.Sprint("g/c", i), Priority: 1})
	}
	ended := Request{Scope: "p/e", Ticket: "ended"}
	b.decide(Request{Scope: ended.Scope, Ticket: ended.Ticket})
	b.wake(WakeRequest{Most: 0, Gone: []Place{at(ended)}, StandStill: []string{"g/"}, All: true})
	b.pass(200 * ms)
	for _, p := range b.wake(WakeRequest{Most: 2, StandStill: []string{"g/"}, All: true}).Released {
		w.out = append(w.out, Place{Scope: p.Scope, Ticket: p.Ticket})
	}
	if parked, err := b.Parked(ctx, "p", 0, 10); len(w.out) != 2 || err != nil || len(parked) != 5 {
		b.t.Fatalf("%v are out, and %v parked: %v", w.out, parked, err)
	}
	return w
}

func (b *bench) wake(req WakeRequest) Woken {
	b.t.Helper()
	req.Provider = "p"
	woken, err := b.Wake(ctx, req)
	if err != nil {
		b.t.Fatal(err)
	}
	return woken
}

func (w *waiters) ask(req Request) {
	w.t.Helper()
	w.tasks = append(w.tasks, req)
	if d := w.decide(req); !d.Turn.Waits {
		w.t.Fatalf("%+v does not wait: %+v", req, d)
	}
}

// comes is one that is picked up, whether it was released or its own queue brings it.
func (w *waiters) comes(req Request) {
	w.t.Helper()
	if slices.Contains(w.started, at(req)) {
		w.t.Fatalf("%+v comes again", req)
	}
	if d := w.decide(req); d.Allowed {
		w.started = append(w.started, at(req))
	} else if !d.Turn.Waits {
		w.t.Fatalf("%+v has no place: %+v", req, d)
	}
}

func (w *waiters) waiting() (left []Request) {
	for _, req := range w.tasks {
		if !slices.Contains(w.started, at(req)) {
			left = append(left, req)
		}
	}
	return left
}

// drain has looks made until nobody has been released for longer than one who was released
// and has not come stays out.
func (w *waiters) drain() {
	w.t.Helper()
	for idle := 0; idle < 60 && len(w.waiting()) > 0; idle++ {
		if w.look() {
			idle = 0
		}
	}
}

// look has those come who are released, and says whether anybody was. Of what is no task it says so.
func (w *waiters) look() (released bool) {
	w.t.Helper()
	w.pass(100 * ms)
	back, err := w.Parked(ctx, "p", 0, 10)
	if err != nil {
		w.t.Fatal(err)
	}
	woken := w.wake(WakeRequest{Most: 4, Gone: w.gone, Back: back})
	w.gone, w.over = nil, !woken.Waiting && !woken.Parked
	for _, p := range woken.Released {
		i := slices.IndexFunc(w.tasks, func(r Request) bool { return at(r) == Place{Scope: p.Scope, Ticket: p.Ticket} })
		if i < 0 || slices.Contains(w.started, at(w.tasks[i])) {
			w.gone = append(w.gone, p)
			continue
		}
		released = true
		w.comes(w.tasks[i])
	}
	return released
}

// goOn has everybody start: those whose places were damaged when their own queues bring them, all
// others by their turns, in order.
func (w *waiters) goOn(hits func(Place) bool) {
	w.t.Helper()
	w.drain()
	for rounds := 0; len(w.waiting()) > 0; rounds++ {
		if rounds == 3 {
			w.t.Fatalf("%v never start", w.waiting())
		}
		for _, req := range w.waiting() {
			if w.alone[at(req)] = true; hits == nil || !hits(at(req)) {
				w.t.Errorf("%v waits until its own queue brings it", at(req))
			}
			w.comes(req)
		}
		w.drain()
	}
	w.inOrder(hits)
	for looks := 0; !w.over; looks++ {
		if looks == 100 {
			w.t.Fatalf("all have started, and %q are left", w.rdb.Keys(ctx, w.provider("p")+"*!*").Val())
		}
		w.look()
	}
}

// inOrder compares those of each scope and lane who have stood in their lines all the time.
func (w *waiters) inOrder(hits func(Place) bool) {
	w.t.Helper()
	place := map[Place]int{}
	for i, p := range w.started {
		place[p] = i
	}
	last := map[string]Request{}
	for _, req := range w.tasks {
		p := at(req)
		if slices.Contains(w.out, p) || w.alone[p] || hits != nil && hits(p) {
			continue
		}
		line := req.Scope + " " + req.Lane
		if before, ok := last[line]; ok && place[at(before)] > place[p] {
			w.t.Errorf("%v starts before %v: %v", p, at(before), w.started)
		}
		last[line] = req
	}
}

// These are the calls that may meet a damaged value first.
var firstCalls = map[string]func(w *waiters){
	"look": func(w *waiters) { w.wake(WakeRequest{Most: 0}) },
	"turn": func(w *waiters) { w.ask(Request{Scope: "p/b/x", Ticket: "new", Lane: "l1", Stride: 3}) },
	"start": func(w *waiters) {
		i := slices.IndexFunc(w.tasks, func(r Request) bool { return at(r) == w.out[0] })
		w.comes(w.tasks[i])
	},
	"line up": func(w *waiters) {
		req := Request{Scope: "p/b/x", Ticket: "new", Lane: "l0"}
		lineUpAll(w.bench, []Ask{{Scope: req.Scope, Ticket: req.Ticket, Lane: req.Lane}})
		w.tasks = append(w.tasks, req)
	},
	"inspect": func(w *waiters) {
		if _, err := w.Inspect(ctx, "p"); err != nil {
			w.t.Fatal(err)
		}
		for _, req := range w.tasks {
			if _, err := w.InspectTicket(ctx, Ask{Scope: req.Scope, Ticket: req.Ticket}); err != nil {
				w.t.Fatal(err)
			}
		}
	},
}

var (
	damagedValues = []string{"", "x", "seven..", "fourteen......", "a text that is longer than any value is", "nan", "-1", "1e400"}
	damagedNames  = []string{"", "x", "\x00", ":all\x00short", "S", "T", "/a/x\x00", "/a/x\x00no ticket"}
)

// damagesOf lists the damages of what stands there now.
func damagesOf(b *bench) (all []damage) {
	key := b.provider("p")
	add := func(what string, hits func(Place) bool, do func(b *bench)) {
		all = append(all, damage{what, do, hits})
	}
	for _, name := range []string{"out", "at", "told"} {
		seen := map[string]bool{}
		values := b.rdb.HGetAll(ctx, key+"!"+name).Val()
		for _, field := range sortedKeys(values) {
			if name == "at" && seen[field[:1]] {
				continue // one of each sort
			}
			seen[field[:1]] = true
			hits := func(p Place) bool { return name == "out" && field == scopePath(p.Scope)+"\x00:"+p.Ticket }
			for _, value := range damagedValues {
				add(fmt.Sprintf("%s %q is %q", name, field, value), hits, func(b *bench) { b.rdb.HSet(ctx, b.provider("p")+"!"+name, field, value) })
			}
			for _, bad := range damagedNames {
				add(fmt.Sprintf("%s %q as %q", name, field, bad), nil, func(b *bench) { b.rdb.HSet(ctx, b.provider("p")+"!"+name, bad, values[field]) })
			}
		}
	}
	for _, name := range []string{"!due", "!round", "!parked", "/b/x!line"} {
		seen := map[string]bool{}
		members := b.rdb.ZRangeWithScores(ctx, key+name, 0, -1).Val()
		if name == "!parked" || name == "/b/x!line" { // the first, and the last
			members = slices.Delete(members, 1, len(members)-1)
		}
		for _, z := range members {
			member := text(z.Member)
			sort, _, _ := strings.Cut(member, "\x00")
			if name == "!round" && seen[sort] {
				continue
			}
			seen[sort] = true
			hits := func(p Place) bool {
				return name == "!parked" && member == scopePath(p.Scope)+"\x00:"+p.Ticket || name == "/b/x!line" && member == ":"+p.Ticket
			}
			scores := []string{"-inf", "+inf", "1e300"}
			if name == "!round" {
				scores = nil // all are 0, and nothing reads them
			}
			for _, score := range scores {
				add(fmt.Sprintf("%s %q is at %s", name, member, score), hits, func(b *bench) { b.rdb.Do(ctx, "ZADD", b.provider("p")+name, score, member) })
			}
			for _, bad := range append([]string{member[:len(member)/2]}, damagedNames...) {
				add(fmt.Sprintf("%s %q is %q", name, member, bad), hits, func(b *bench) {
					b.rdb.ZAdd(ctx, b.provider("p")+name, redis.Z{Score: z.Score, Member: bad})
					b.rdb.ZRem(ctx, b.provider("p")+name, member)
				})
			}
		}
	}
	for _, name := range []string{"!due", "!round", "!out", "!at", "!told", "!parked", "/b/x!line"} {
		hits := func(p Place) bool {
			return name == "!parked" && p.Scope == "p/c" || name == "/b/x!line" && p.Scope == "p/b/x" || name == "!out"
		}
		for kind, put := range map[string]func(b *bench, key string){
			"string": func(b *bench, key string) { b.rdb.Set(ctx, key, "text", 0) },
			"list":   func(b *bench, key string) { b.rdb.RPush(ctx, key, "text") },
			"hash":   func(b *bench, key string) { b.rdb.HSet(ctx, key, "a", "text") },
			"zset":   func(b *bench, key string) { b.rdb.ZAdd(ctx, key, redis.Z{Member: "text"}) },
		} {
			if b.rdb.Type(ctx, key+name).Val() == kind {
				continue
			}
			add(fmt.Sprintf("%s is a %s", name, kind), hits, func(b *bench) {
				b.rdb.Del(ctx, b.provider("p")+name)
				put(b, b.provider("p")+name)
			})
		}
	}
	return all
}

func sortedKeys(m map[string]string) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// "Whatever is damaged of what a provider's turns keep, those who wait go on": nobody loses a place
// but those whose own it was, and they get one when they come. Each damage is met first by
// some call, and on Redis by a look too; with HISTORY_STEPS, as in make histories, by each call.
func TestDamagedValues(t *testing.T) {
	t.Parallel()
	var calls []string
	for first := range firstCalls {
		calls = append(calls, first)
	}
	slices.Sort(calls)
	onBoth(t, Config{}, damagedPolicy(t), func(b *bench) {
		begin(b)
		all := damagesOf(b)
		if len(all) < 250 {
			b.t.Fatalf("%d damages", len(all))
		}
		onRedis := !strings.Contains(b.t.Name(), "miniredis")
		for i, d := range all {
			meets := func(first string) {
				b.t.Run(first+", "+d.what, func(t *testing.T) {
					w := begin(newBench(t, b.rdb, Config{Logger: slog.New(slog.DiscardHandler)}, b.Policy()))
					d.do(w.bench)
					firstCalls[first](w)
					w.goOn(d.hits)
				})
			}
			switch {
			case onRedis && os.Getenv("HISTORY_STEPS") != "":
				for _, first := range calls {
					meets(first)
				}
			case onRedis && !raced:
				meets("look")
				meets(calls[i%len(calls)])
			case onRedis && i%16 == 0: // the histories' step meets them all without the race detector
				meets(calls[i/16%len(calls)])
			case i%48 == 0: // miniredis takes a tenth of a second for each
				meets(calls[i/48%len(calls)])
			}
		}
	})
}
