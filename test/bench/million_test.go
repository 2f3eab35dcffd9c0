package bench

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
	limitspage "github.com/headway-go/headway/worker/page"
)

const millionLimits = `limits:
  payments:
    rules: [{name: account, algorithm: sliding-window, limit: 1, per: 24h}]
    scopes: {"*": {rules: [{name: tenant, algorithm: token-bucket, limit: 1, per: 1h}]}}
`

// BenchmarkMillion asks for each screen of the page with 1,000,000 tasks that wait in 10,000 scopes of one provider: first from a page
// that has read nothing, and then once a second. It runs only if it is asked for by its name: filling takes minutes.
func BenchmarkMillion(b *testing.B) {
	scopes, each := 10_000, 100
	if !strings.Contains(flag.Lookup("test.bench").Value.String(), "Million") {
		b.Skip("make bench PKG=./test/bench BENCH=Million runs it")
	}
	if !long() {
		scopes, each = 100, 10
	}
	name := fmt.Sprintf("the page, %d tasks that wait in %d scopes", scopes*each, scopes)
	rdb := fillMillion(b, scopes, each)
	for _, screen := range []struct{ who, path string }{
		{"overview", "/"}, {"provider", "/scope?scope=payments"}, {"scope", "/scope?scope=payments/t00007"}, {"provider, last page of scopes", "/scope?scope=payments&page=99"},
		{"who waits", "/waiters?scope=payments/t00007"}, {"task", "/task?id=shown-5"}, {"history", "/history"}, {"workers", "/workers"},
		{"clear, counted", "/tasks"},
	} {
		b.Run(screen.who, func(b *testing.B) {
			for b.Loop() {
				table.add(screenRow(b, rdb, name, screen.who, screen.path))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// fillMillion has tasks wait, those of one scope in asynq's queues too.
func fillMillion(b *testing.B, scopes, each int) *redis.Client {
	b.Helper()
	rdb := redistest.NewServer(b).Client(b)
	p, err := limitsyaml.Parse("limits.yaml", []byte(millionLimits))
	must(b, err)
	limiter, err := throttle.New(rdb, p, throttle.Config{Timeout: time.Minute})
	must(b, err)
	_, _, err = policystore.New(rdb, policystore.Config{}).PublishFile(b.Context(), "bench", p, false)
	must(b, err)
	_, err = limiter.Allow(b.Context(), "payments/first")
	must(b, err)
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	for i := range each {
		_, err := client.Enqueue(b.Context(), queue.Task{Type: "mail", ID: fmt.Sprint("shown-", i), Scope: "payments/t00007"})
		must(b, err)
	}
	names := numbered("payments/t%05d", scopes)
	var waiters []waitlist.Waiter
	for n := range each {
		for i, scope := range names {
			if i == 7 {
				continue
			}
			waiters = append(waiters, waitlist.Waiter{Scope: scope, Queue: queue.DefaultQueue, ID: fmt.Sprintf("%d-%d", i, n)})
		}
	}
	_, err = limiter.Waitlist().Join(b.Context(), waiters)
	must(b, err)
	return rdb
}

// screenRow asks for a screen, at first and then each second, and says how long the answer takes, and what it costs Redis.
func screenRow(b *testing.B, rdb *redis.Client, name, who, path string) figures.Row {
	b.Helper()
	sent := &sentCommands{}
	own := redis.NewClient(rdb.Options())
	defer func() { _ = own.Close() }()
	own.AddHook(sent)
	page, err := limitspage.New(limitspage.Config{Redis: own, Identify: func(*http.Request) (limitspage.Actor, bool) {
		return limitspage.Actor{Name: "bench", Role: limitspage.RoleAdmin}, true
	}})
	must(b, err)
	var first, most visit
	var later []time.Duration
	for i := range 11 {
		v := visitOnce(b, rdb, sent, page, path)
		if i == 0 {
			first = v
		} else {
			later = append(later, v.took)
			most.commands, most.redis = max(most.commands, v.commands), max(most.redis, v.redis)
		}
		<-time.After(1050 * time.Millisecond) // what was read is a second old then
	}
	row := figures.NewRow(name, who)
	row.Note = fmt.Sprintf("first %.1f ms, %d commands, Redis %.1f ms; then %.1f ms, at most %.1f ms, %d commands, Redis %.1f ms",
		ms(first.took), first.commands, ms(first.redis), ms(figures.Quantile(later, 0.5)), ms(slices.Max(later)), most.commands, ms(most.redis))
	return row
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// visit is one request for a screen: how long it took, and how many commands Redis was sent and how long it ran them.
type visit struct {
	took, redis time.Duration
	commands    int
}

func visitOnce(b *testing.B, rdb *redis.Client, sent *sentCommands, page http.Handler, path string) (v visit) {
	b.Helper()
	must(b, rdb.ConfigResetStat(b.Context()).Err())
	sent.take()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if path == "/tasks" {
		r = httptest.NewRequest(http.MethodPost, path, strings.NewReader("verb=clear&scope=payments"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	w, began := httptest.NewRecorder(), time.Now()
	page.ServeHTTP(w, r)
	v.took = time.Since(began)
	if w.Code != http.StatusOK {
		b.Fatalf("%s: %d\n%s", path, w.Code, w.Body)
	}
	ran := commandStats(b, rdb)
	for name, n := range sent.take() { // the time of a script has the commands that it calls in it
		v.commands += n
		v.redis += time.Duration(n) * (ran[name].took / time.Duration(max(1, ran[name].calls)))
	}
	return v
}

// sentCommands counts what a client sends, by command: a script counts once.
type sentCommands struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *sentCommands) note(cmds ...redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[string]int{}
	}
	for _, cmd := range cmds {
		s.n[strings.ToLower(cmd.Name())]++
	}
}

// take returns the counts since the last call.
func (s *sentCommands) take() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.n
	s.n = nil
	return n
}

func (s *sentCommands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *sentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.note(cmds...)
		return next(ctx, cmds)
	}
}
