package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkIdle counts what a server asks of Redis that has nothing to do, and one whose tasks all wait for an hour.
func BenchmarkIdle(b *testing.B) {
	idle(b, contender{name: "asynq alone", serve: byBareAsynq}, 0)
	idle(b, planned, 0)
	idle(b, planned, 1)
	many := 5000
	if !long() {
		many = 100
	}
	idle(b, planned, many)
}

// idle adds a row of a server under whose limits a task waits for each of so many providers: one an hour may start, and one has.
func idle(b *testing.B, c contender, providers int) {
	b.Helper()
	name := "an idle worker"
	switch {
	case providers == 1:
		name += ", with a task that waits for an hour"
	case providers > 1:
		name += fmt.Sprintf(", with a task of each of %d providers that waits for an hour", providers)
	}
	b.Run(label(name)+"/"+c.name, func(b *testing.B) {
		for b.Loop() {
			rate := idleOnce(b, c, providers)
			row := figures.NewRow(name, c.name)
			row.Note = fmt.Sprintf("%.1f commands a second", rate)
			table.add(row)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(rate, "commands/s")
		}
	})
}

func idleOnce(b *testing.B, c contender, providers int) (rate float64) {
	b.Helper()
	scopes := numbered("p%04d", providers)
	st := newStage(b, scenario{
		tasks:  jobs(providers, scopes...),
		limits: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{sliding("r", 1, time.Hour)}}},
	}, nil)
	defer st.end()
	if providers > 0 {
		st.spend(b, scopes)
		must(b, c.enqueue(st))
	}
	stop, err := c.serve(st)
	must(b, err)
	settle, count := 10*time.Second, 10*time.Second
	if !long() {
		settle, count = 500*time.Millisecond, time.Second
	}
	<-time.After(settle) // the start of the server is over
	rate = idleRate(b, st.rdb, count)
	must(b, stop())
	return rate
}

// spend takes a unit of each of the scopes.
func (st *stage) spend(b *testing.B, scopes []string) {
	b.Helper()
	limiter, err := throttle.New(st.rdb, st.policy, throttle.Config{StartTolerance: pad})
	must(b, err)
	must(b, each(jobs(len(scopes), scopes...), func(j job) error {
		_, err := limiter.Allow(b.Context(), j.scope)
		return err
	}))
}

// idleRate returns how many commands a second Redis is sent from now on, those that scripts call included.
func idleRate(b *testing.B, rdb *redis.Client, during time.Duration) float64 {
	b.Helper()
	must(b, rdb.ConfigResetStat(context.Background()).Err())
	began := time.Now()
	<-time.After(during)
	return float64(commandsOf(b, rdb)) / time.Since(began).Seconds()
}

// BenchmarkSlow asks for the commands of a task under a limit that is so slow that most of them would be an idle server's.
func BenchmarkSlow(b *testing.B) {
	n, polls := 300, 5*time.Second
	if !long() {
		n, polls = 20, time.Second
	}
	for _, rule := range []policy.Rule{bucket("r", 10, time.Second, 1), sliding("r", 10, time.Second)} {
		s := single(fmt.Sprintf("%d at 10/s, %s, idle polling left out", n, rule.Algorithm), n, rule)
		s.idlePolls = polls
		measure(b, s, planned)
		if !long() {
			return
		}
	}
}
