package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// drained is how many tasks a server without limits works off.
func drained() int {
	if long() {
		return 20_000
	}
	return 4000
}

// BenchmarkUnlimited runs tasks that no limit stands in the way of, with asynq alone and with Headway around the same handler:
// without a scope, and under rules that are never reached. They take turns, and the medians count.
func BenchmarkUnlimited(b *testing.B) {
	name := fmt.Sprintf("%d,000 tasks, no limit in the way", drained()/1000)
	ways := []struct{ who, scope string }{
		{"asynq alone", ""},
		{"Headway, no scope", ""},
		{"Headway, one rule", "p/a"},
		{"Headway, three levels, four rules", "q/a/b"},
	}
	b.Run(name, func(b *testing.B) {
		rates, ratios, commands := make([][]float64, len(ways)), make([][]float64, len(ways)), make([]float64, len(ways))
		for b.Loop() {
			for i := range rounds() * len(ways) {
				i %= len(ways)
				way := ways[i]
				rate, sent := drain(b, way.scope, i > 0)
				rates[i], commands[i] = append(rates[i], rate), sent
				ratios[i] = append(ratios[i], rate/rates[0][len(rates[i])-1])
			}
		}
		for i, way := range ways {
			row := figures.NewRow(name, way.who)
			row.Rate, row.Commands = figures.Median(rates[i]), commands[i]
			if i > 0 {
				ratio := figures.Median(ratios[i])
				row.Note = fmt.Sprintf("%.2f × asynq alone", ratio)
				b.ReportMetric(ratio, "x-"+unit(way.who))
			}
			table.add(row)
		}
	})
}

var parallel = policy.Rule{Name: "parallel", Algorithm: policy.Concurrency, Limit: neverFull}

// drain returns how many tasks a second a server takes from a full queue, and how many commands Redis runs for each.
func drain(b *testing.B, scope string, headway bool) (rate, commands float64) {
	b.Helper()
	n := drained()
	st := newStage(b, scenario{tasks: jobs(n, scope), limits: neverReached(parallel)}, nil)
	defer st.end()
	must(b, byAsynq(st)) // so that both find the same tasks
	cfg := asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel}
	took, sent := st.workOff(b, cfg, headway, nil, func() {})
	return float64(n) / took.Seconds(), float64(sent) / float64(n)
}

// workOff has a server work off a full queue, asynq's own or ours, and returns how long that takes and how many commands it sends.
func (st *stage) workOff(b *testing.B, cfg asynq.Config, headway bool, seen worker.Observer, work func()) (took time.Duration, sent int64) {
	b.Helper()
	st.rdb.ConfigResetStat(context.Background())
	var done atomic.Int64
	all := make(chan struct{})
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		work()
		if done.Add(1) == int64(len(st.tasks)) {
			close(all)
		}
		return nil
	})
	began := time.Now()
	stop, err := st.startServer(st.rdb, cfg, headway, seen, handler)
	must(b, err)
	<-all
	took, sent = time.Since(began), commandsOf(b, st.rdb)
	stop()
	return took, sent
}

// neverReached is the tree of a policy whose limits nothing here comes near: one rule, or four, of which one is the caller's.
func neverReached(fourth policy.Rule) map[string]policy.ScopeConfig {
	return map[string]policy.ScopeConfig{
		"p": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{bucket("r", neverFull, time.Second, neverFull)}}}},
		"q": {
			Rules: []policy.Rule{sliding("account", neverFull, time.Second)},
			Scopes: map[string]policy.ScopeConfig{"*": {
				Rules:  []policy.Rule{bucket("tenant", neverFull, time.Second, neverFull), fourth},
				Scopes: map[string]policy.ScopeConfig{"b": {Rules: []policy.Rule{sliding("endpoint", neverFull, time.Second)}}},
			}},
		},
	}
}
