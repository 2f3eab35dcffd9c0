package bench

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
	limitspage "github.com/headway-go/headway/worker/page"
)

// BenchmarkPage counts what a worker with the page asks of Redis: without the page, with it and no viewer, with one viewer and with a
// hundred, one after the other of the same worker.
func BenchmarkPage(b *testing.B) {
	const providers = 20
	name := fmt.Sprintf("a worker, with a task of each of %d providers that waits for an hour", providers)
	b.Run(label(name), func(b *testing.B) {
		for b.Loop() {
			st := newStage(b, scenario{
				tasks:  jobs(providers, numbered("p%04d", providers)...),
				limits: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{sliding("r", 1, time.Hour)}}},
			}, nil)
			pageCosts(b, st, name, numbered("p%04d", providers))
			st.end()
		}
		b.ReportMetric(0, "ns/op")
	})
}

func pageCosts(b *testing.B, st *stage, name string, scopes []string) {
	b.Helper()
	st.spend(b, scopes)
	must(b, byQueue(st))
	running, err := worker.New(st.rdb, worker.Config{Limits: st.policy, By: "bench", NoMetrics: true, Logger: slog.New(slog.DiscardHandler)})
	must(b, err)
	server := running.NewServer(asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
	must(b, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	defer server.Shutdown()
	settle, count := 15*time.Second, 30*time.Second
	if !long() {
		settle, count = 500*time.Millisecond, 2*time.Second
	}
	<-time.After(settle) // the start of the server is over
	add := func(who, unit string, rate float64, more string) {
		row := figures.NewRow(name, who)
		row.Note = fmt.Sprintf("%.1f commands a second%s", rate, more)
		table.add(row)
		b.ReportMetric(rate, unit)
	}
	add("without the page", "without-commands/s", idleRate(b, st.rdb, count), "")
	handler, err := limitspage.New(limitspage.Config{Redis: st.rdb, Local: "bench"})
	must(b, err)
	front := httptest.NewServer(handler)
	defer front.Close()
	add("with the page, nobody looks", "mounted-commands/s", idleRate(b, st.rdb, count), "")
	for _, viewers := range []int{1, 100} {
		seen, stop := look(b, front.URL, viewers)
		<-time.After(settle)
		before := seen.Load()
		rate := idleRate(b, st.rdb, count)
		each := float64(seen.Load()-before) / float64(viewers) / count.Seconds()
		stop()
		add(fmt.Sprintf("with the page, %d looking", viewers), fmt.Sprintf("%d-viewers-commands/s", viewers), rate, fmt.Sprintf(", %.2f snapshots a second to each", each))
	}
}

// look opens the overview's stream as many viewers, and counts what they receive.
func look(b *testing.B, base string, viewers int) (seen *atomic.Int64, stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	seen = &atomic.Int64{}
	for range viewers {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/live?at="+url.QueryEscape("/"), nil)
		must(b, err)
		answer, err := http.DefaultClient.Do(r)
		if err != nil || answer.StatusCode != http.StatusOK {
			b.Fatalf("%v, %v", answer, err)
		}
		all.Go(func() {
			defer func() { _ = answer.Body.Close() }()
			for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
				if lines.Text() == "event: at" {
					seen.Add(1)
				}
			}
		})
	}
	return seen, func() {
		cancel()
		all.Wait()
	}
}
