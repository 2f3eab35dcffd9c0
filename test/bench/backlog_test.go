package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkBacklog lets servers loose on backlogs under a limit: ours, and beside it the usual way (a limiter in the handler, and
// an error that tells asynq when to come back) and BullMQ's limiter.
func BenchmarkBacklog(b *testing.B) {
	if !long() {
		shortBacklogs(b)
		return
	}
	pictured := calling(single("2000 at 100/s, token bucket", 2000, bucket("r", 100, time.Second, 1)))
	pictured.picture = true
	measure(b, pictured, planned, unplanned, usual1, usualLimit)
	measure(b, calling(single("2000 at 100/s, burst 10", 2000, bucket("r", 100, time.Second, 10))), planned)
	measure(b, calling(single("2000 at 100/s, sliding window", 2000, sliding("r", 100, time.Second))), planned, unplanned, bullMQ.contender())

	measure(b, single("500 at 10/s, token bucket", 500, bucket("r", 10, time.Second, 1)), planned, usual1, usualLimit)
	measure(b, single("500 at 10/s, burst 10", 500, bucket("r", 10, time.Second, 10)), planned)
	measure(b, single("500 at 10/s, sliding window", 500, sliding("r", 10, time.Second)), planned, bullMQ.contender())

	measure(b, single("1200 at 600/60 s, token bucket", 1200, bucket("r", 600, time.Minute, 1)), planned, usual1, usualLimit)
	measure(b, single("1200 at 600/60 s, burst 10", 1200, bucket("r", 600, time.Minute, 10)), planned)
	measure(b, single("1200 at 600/60 s, sliding window", 1200, sliding("r", 600, time.Minute)), planned, bullMQ.contender())

	measure(b, single("10,000 at 1000/s, token bucket", 10_000, bucket("r", 1000, time.Second, 1)), planned, unplanned, usual1, usualLimit)
	measure(b, single("10,000 at 1000/s, sliding window", 10_000, sliding("r", 1000, time.Second)), planned, bullMQ.contender())
	measure(b, single("100,000 at 1000/s, token bucket", 100_000, bucket("r", 1000, time.Second, 1)), planned)
	measure(b, single("100,000 at 1000/s, sliding window", 100_000, sliding("r", 1000, time.Second)), planned)

	for _, rule := range []policy.Rule{bucket("r", 100, time.Second, 10), sliding("r", 100, time.Second)} {
		measure(b, busy(rule), planned)
	}
	two := single("2000 at 100/s, token bucket, two workers", 2000, bucket("r", 100, time.Second, 1))
	two.workers = 2
	measure(b, two, planned, unplanned)
	measure(b, nested(2000, 100), planned, unplanned)
	measure(b, scopes(100, 20), planned, unplanned, usual1)
}

// shortBacklogs are done in half a minute, with nothing but Redis.
func shortBacklogs(b *testing.B) {
	b.Helper()
	measure(b, calling(single("200 at 100/s, token bucket", 200, bucket("r", 100, time.Second, 1))),
		hasty(planned), hasty(unplanned), hasty(usual1), hasty(usualLimit))
	measure(b, single("200 at 100/s, sliding window", 200, sliding("r", 100, time.Second)), hasty(planned), bullMQ.contender())
	measure(b, nested(200, 100), hasty(planned))
	measure(b, scopes(20, 5), hasty(planned))
}

// hasty gives a contender four seconds.
func hasty(c contender) contender {
	c.spell = 4 * time.Second
	return c
}

// calling has every task call the counting API.
func calling(s scenario) scenario {
	s.api = true
	return s
}

// busy has more programs beside it than there are processors, and a margin for the calls' times on the way, so that the rule is
// kept at the API too. A bucket has a burst to pay it from: one of burst 1 pays with its rate.
func busy(rule policy.Rule) scenario {
	rule.Margin = 5 * time.Millisecond
	s := single(fmt.Sprintf("2000 at 100/s, %s, margin %v, three programs that hog", rule.Algorithm, rule.Margin), 2000, rule)
	s.api, s.hogs = true, 3
	return s
}

// nested has 20 tenants under the rule of a provider, which binds, rules of their own and of an endpoint, and two workers.
func nested(n int, limit int64) scenario {
	return scenario{
		name: fmt.Sprintf("%d of 20 tenants at %d/s together, 3 rules, two workers", n, limit), tasks: jobs(n, numbered("p/t%02d/charge", 20)...),
		limits: map[string]policy.ScopeConfig{"p": {
			Rules: []policy.Rule{sliding("provider", limit, time.Second)},
			Scopes: map[string]policy.ScopeConfig{"*": {
				Rules:  []policy.Rule{bucket("tenant", limit/5, time.Second, 5)},
				Scopes: map[string]policy.ScopeConfig{"charge": {Rules: []policy.Rule{sliding("endpoint", limit/10, time.Second)}}},
			}},
		}},
		binding: "provider", level: 1, workers: 2, api: true,
	}
}

// scopes has n scopes of 5/s each, with their tasks mixed.
func scopes(n, tasks int) scenario {
	return scenario{
		name: fmt.Sprintf("%d scopes of %d at 5/s", n, tasks), tasks: jobs(n*tasks, numbered("p/t%03d", n)...),
		limits: map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"*": {
			Rules: []policy.Rule{bucket("r", 5, time.Second, 1)},
		}}}},
		binding: "r", level: 2,
	}
}

// startsChart draws the usual way above ours, by their runs of one scenario.
func startsChart(runs map[string][]time.Duration) figures.Chart {
	const span, slice = 10 * time.Second, 100 * time.Millisecond
	c := figures.Chart{
		Title: "Starts in each tenth of a second, limit 100/s", Span: span, Slice: slice, Limit: 100 * slice.Seconds(),
	}
	for _, way := range []contender{usual1, usualLimit, planned} {
		if starts, ok := runs[way.name]; ok {
			c.Panels = append(c.Panels, figures.Panel{Title: way.name, Starts: starts})
		}
	}
	return c
}

// BenchmarkAway asks how much of a quota is used where Redis is some milliseconds away each
// way, as in another data centre, and each piece takes up to a quarter more or less.
func BenchmarkAway(b *testing.B) {
	if !long() {
		distant(b, single("", 100, sliding("r", 50, time.Second)), 50, 20*time.Millisecond)
		return
	}
	for _, away := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond} {
		distant(b, single("", 1000, sliding("r", 50, time.Second)), 50, away)
		distant(b, nested(1000, 50), 50, away)
		distant(b, single("", 5000, sliding("r", 500, time.Second)), 500, away)
		distant(b, nested(5000, 500), 500, away)
	}
}

// distant has two processes work a scenario off, so far from Redis. At hundreds a second they have
// more slots: a task keeps one for some round trips.
func distant(b *testing.B, s scenario, rate int, away time.Duration) {
	b.Helper()
	rules := "one rule"
	if s.level > 0 && s.binding == "provider" {
		rules = "three rules"
	}
	s.name = fmt.Sprintf("%d at %d/s, %s, two processes, Redis %v ± %v away each way", len(s.tasks), rate, rules, away, away/4)
	s.away, s.jitter, s.workers = away, away/4, 2
	if rate > 100 {
		s.slots = 200
	}
	measure(b, s, builtPrograms)
}
