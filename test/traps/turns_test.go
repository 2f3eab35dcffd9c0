package traps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// ticketed are n who ask for places in the line of p/x: t00, t01, ...
func ticketed(n int) (asks []throttle.Waiter) {
	for i := range n {
		asks = append(asks, throttle.Waiter{Scope: "p/x", ID: fmt.Sprintf("t%02d", i)})
	}
	return asks
}

func (l limiter) lineUp(asks []throttle.Waiter, near time.Duration) []throttle.Joined {
	l.w.Helper()
	placed, err := l.Waitlist().Join(context.Background(), asks, 20*ms, near)
	if err != nil {
		l.w.Fatal(err)
	}
	return placed
}

// wake returns the tickets of those who are granted, by default as a worker asks
// that has places for all. Those that are overdue go back to their places, as a worker has them.
func (l limiter) wake(req throttle.DispatchRequest) (tickets []string) {
	l.w.Helper()
	req.Provider = "p"
	if req.Max == 0 {
		req.Max = 64
	}
	if req.Lead == 0 {
		req.Lead, req.Spread = 20*ms, 80*ms // as a worker does
	}
	for {
		d, err := l.Waitlist().Dispatch(context.Background(), req)
		if err != nil {
			l.w.Fatal(err)
		}
		for _, g := range d.Granted {
			tickets = append(tickets, g.ID)
		}
		if len(d.Overdue) == 0 {
			return tickets
		}
		req = throttle.DispatchRequest{Provider: "p", Max: req.Max, Lead: req.Lead, Spread: req.Spread, Unused: d.Overdue}
	}
}

// comes is one who has been released and asks: its start is as near as wake looks.
func (l limiter) comes(ticket string) throttle.Decision {
	l.w.Helper()
	return l.decide(throttle.Request{MaxDelay: 100 * ms, Turn: throttle.Turn{WaiterID: ticket, DispatchLead: 20 * ms}})
}

func (l limiter) standing(ticket string) throttle.WaiterStatus {
	l.w.Helper()
	s, err := l.Waitlist().InspectWaiter(context.Background(), throttle.Waiter{Scope: "p/x", ID: ticket})
	if err != nil {
		l.w.Fatal(err)
	}
	return s
}

// "What is still out is set aside": whoever is released has a start that is as near as
// it was released for, whichever process asked, and no more are than have places.
func TestReleasedIsSetAside(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{bucket(100, sec, 1), bucket(100, sec, 10), sliding(10, 100*ms)}
	rules[1].Name = "burst"
	forEach(t, rules, func(w *world, rule policy.Rule) {
		const n = 60
		processes := []limiter{w.limiter(rule), w.limiter(rule)}
		w.at(0)
		processes[0].admitted(10)
		processes[0].lineUp(ticketed(n), 0)
		if got := processes[1].wake(throttle.DispatchRequest{Max: 3, Lead: sec}); len(got) > 3 {
			w.Fatalf("%q were released, and there are three places", got)
		}
		w.anew()
		processes = []limiter{w.limiter(rule), w.limiter(rule)}
		processes[0].admitted(10)
		processes[0].lineUp(ticketed(n), 0)
		var out, started []string
		for i := range 200 {
			w.at(time.Duration(i) * 10 * ms)
			out = append(out, processes[i%2].wake(throttle.DispatchRequest{})...)
			out = append(out, processes[1-i%2].wake(throttle.DispatchRequest{CheckAll: true})...)
			if i%4 > 0 {
				continue // they take a while to come
			}
			for _, ticket := range out {
				if d := processes[1].comes(ticket); !d.Allowed {
					w.Fatalf("%s was released and denied: %+v", ticket, d)
				}
			}
			started, out = append(started, out...), nil
		}
		if !slices.IsSorted(started) || len(started) != n {
			w.Errorf("%d of %d started: %q", len(started), n, started)
		}
	})
}

// "tasks whose units are free go straight in, all others to their places": each is in
// one of the two alone, also where its start is now.
func TestStraightOrInLine(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{bucket(10, sec, 3), sliding(5, sec), fixed(5, sec), places(2, sec)}
	forEach(t, rules, func(w *world, rule policy.Rule) {
		const n = 12
		l := w.limiter(rule)
		w.at(0)
		var straight, waits []string
		for i, p := range l.lineUp(ticketed(n), 150*ms) {
			ticket := ticketed(n)[i].ID
			s := l.standing(ticket)
			if s.Waits != p.Waits {
				w.Errorf("%s was told to wait: %t; in line: %t", ticket, p.Waits, s.Waits)
			}
			if p.Waits {
				waits = append(waits, ticket)
			} else {
				straight = append(straight, ticket)
			}
		}
		if len(straight) == 0 || len(waits) == 0 {
			w.Fatalf("%q went straight to their queue and %q wait: the test tests nothing", straight, waits)
		}
		grants := map[string]throttle.Decision{}
		for _, ticket := range straight {
			if grants[ticket] = l.decide(throttle.Request{Turn: throttle.Turn{WaiterID: ticket}, MaxDelay: 150 * ms}); !grants[ticket].Allowed {
				w.Errorf("%s went straight to its queue and was denied: %+v", ticket, grants[ticket])
			}
		}
		var released []string
		for i := range 60 {
			w.at(time.Duration(i) * 100 * ms)
			for ticket, d := range grants { // their runs end, which frees places
				if err := l.Refund(context.Background(), d.Grant); rule.Algorithm == policy.Concurrency && err != nil {
					w.Fatalf("%s: %v", ticket, err)
				}
			}
			clear(grants)
			for _, ticket := range l.wake(throttle.DispatchRequest{}) {
				released = append(released, ticket)
				if d := l.comes(ticket); d.Allowed && rule.Algorithm == policy.Concurrency {
					grants[ticket] = d
				}
			}
		}
		if !slices.Equal(released, waits) {
			w.Errorf("%q were released, of %q", released, waits)
		}
	})
}

// "One that has not come after 3 s goes back to its place": the first one, which it
// had, and its units are free for it again.
func TestNeverCame(t *testing.T) {
	t.Parallel()
	forEach(t, rates(1, 10*sec), func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		w.at(0)
		l.admitted(1)
		l.lineUp(ticketed(3), 0)
		at := 10 * sec
		w.at(at)
		if got := l.wake(throttle.DispatchRequest{}); !slices.Equal(got, []string{"t00"}) {
			w.Fatalf("%q were released", got)
		}
		w.at(at + 3*sec - us)
		if got := l.wake(throttle.DispatchRequest{}); len(got) > 0 {
			w.Errorf("%q were released, and a unit is set aside for the one before them", got)
		}
		if s := l.standing("t00"); !s.Dispatched {
			w.Errorf("a microsecond before 3 s: %+v", s)
		}
		w.at(at + 3*sec)
		if got := l.wake(throttle.DispatchRequest{}); !slices.Equal(got, []string{"t00"}) {
			w.Errorf("after 3 s %q were released", got)
		}
		if d := l.comes("t00"); !d.Allowed {
			w.Errorf("it comes and is denied: %+v", d)
		}
		if s := l.standing("t01"); !s.Waits || s.Ahead != 0 {
			w.Errorf("the next: %+v", s)
		}
	})
}

// "A task that does not exist is tried again eight places later, since it may be about
// to be enqueued; the second time it is forgotten."
func TestOrphanGoesBackEightPlaces(t *testing.T) {
	t.Parallel()
	forEach(t, rates(1, 10*sec), func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		w.at(0)
		l.admitted(1)
		l.lineUp(ticketed(12), 0)
		orphan := []throttle.WaiterRef{{Scope: "p/x", ID: "t00"}}
		var turns []string
		var news throttle.DispatchRequest
		for i := range 14 {
			w.at(time.Duration(i+1) * 10 * sec)
			for range 2 { // the second brings the news of the first
				got := l.wake(news)
				news = throttle.DispatchRequest{}
				for _, ticket := range got {
					turns = append(turns, ticket)
					switch {
					case ticket != "t00":
						if d := l.comes(ticket); !d.Allowed {
							w.Errorf("%s was released and denied", ticket)
						}
					case slices.Contains(turns[:len(turns)-1], "t00"):
						news.Deleted = orphan
					default:
						news.NotFound = orphan
					}
				}
			}
		}
		want := strings.Fields("t00 t01 t02 t03 t04 t05 t06 t07 t08 t00 t09 t10 t11")
		if !slices.Equal(turns, want) {
			w.Errorf("turns were given to %q, want %q", turns, want)
		}
		if s := l.standing("t00"); s.Waits || s.Dispatched {
			w.Errorf("it is not forgotten: %+v", s)
		}
	})
}

// A rule that frees a window's units at once is told so to those who wait: each is
// expected with its window, and no two are told the same moment where they are not to
// start at the same.
func TestExpectedByWindow(t *testing.T) {
	t.Parallel()
	rules := append(rates(5, sec), bucket(5, sec, 1))
	rules[0].Name, rules[3].Name = "full", "even"
	forEach(t, rules, func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		w.at(0)
		spent := time.Duration(l.admitted(5))
		for i, p := range l.lineUp(ticketed(23), 0) {
			want := time.Duration(i/5+1) * sec
			if rule.Algorithm == policy.TokenBucket {
				want = time.Duration(i+1) * 200 * ms
			}
			if !p.Waits || p.Expected < want || p.Expected > want+want/50 {
				w.Errorf("after %d units number %d is expected in %v, want %v", spent, i, p.Expected, want)
			}
		}
	})
}

// What waits is kept "half a day to a day longer than the last of them is expected to
// wait", who announced it a day: nothing of queues stays for
// ever, however they came about.
func TestLinesExpire(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		const day, slack = 24 * hour, 60 * sec // for a machine that is busy meanwhile
		ctx := context.Background()
		l := w.limiter(sliding(1, hour))
		l.take(1)
		kept := func(what string, longest time.Duration) {
			w.Helper()
			found := map[string]bool{}
			for _, key := range w.keys() {
				_, kind, line := strings.Cut(key, "!")
				if !line {
					continue
				}
				least, most := longest+day/2-slack, longest+longest/2+day+slack // through its safety net
				if kind != "queue" {
					least = day/2 - slack // they are looked at, and kept, meanwhile
				}
				if ttl := w.rdb.PTTL(ctx, key).Val(); ttl <= least || ttl > most {
					w.Errorf("%s: %s expires in %v, want %v to %v", what, key, ttl, least, most)
				}
				found[kind] = true
			}
			if !found["queue"] || !found["schedule"] || !found["heap"] || !found["meta"] {
				w.Errorf("%s: only %v: the test tests nothing", what, found)
			}
		}
		for i := range 30 {
			l.decide(throttle.Request{Turn: throttle.Turn{WaiterID: fmt.Sprint("asks ", i)}})
			kept(fmt.Sprint(i+1, " who asked"), time.Duration(i+1)*hour)
		}
		l.lineUp(ticketed(30), 0)
		kept("30 who were lined up", 60*hour)
		l.wake(throttle.DispatchRequest{Lead: hour})
		kept("one was released", 60*hour)
		l.wake(throttle.DispatchRequest{Lead: hour, NotFound: []throttle.WaiterRef{{Scope: "p/x", ID: "asks 0"}}})
		kept("one was put back", 60*hour)
		if err := l.Waitlist().PublishActive(ctx, "p"); err != nil {
			w.Fatal(err)
		}
		if ttl := w.rdb.PTTL(ctx, w.prefix+":turns").Val(); ttl <= day-60*sec || ttl > day {
			w.Errorf("what is announced expires in %v", ttl)
		}
		for _, key := range w.keys() {
			if w.rdb.PTTL(ctx, key).Val() <= 0 {
				w.Errorf("%s stays for ever", key)
			}
		}
	})
}
