package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// Tasks behind the members of a pool are expected by what those admit together, before they are enqueued and when they wait: 350 behind
// three members of 50, 100 and 200 a second that have just been used up, within about a second.
func TestForecastOfAPool(t *testing.T) {
	t.Parallel()
	for algorithm, most := range map[string]time.Duration{"sliding-window, limit: %d, per: 1s": 1700 * time.Millisecond, "token-bucket, limit: %d, per: 1s, burst: 1": 1200 * time.Millisecond} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			rule := func(n int) string { return fmt.Sprintf("{rules: [{name: key, algorithm: "+algorithm+"}]}", n) }
			policy, err := limitsyaml.Parse("limits.yaml", fmt.Appendf(nil, `limits: {github: {pool: {members: [alice, bob, ci, off]}, scopes: {
				"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 100000, per: 1s}]}, "@off": {paused: true, rules: [{name: key, algorithm: sliding-window, limit: 9, per: 1s}]},
				"@alice": %s, "@bob": %s, "@ci": %s}}}`, rule(50), rule(100), rule(200)))
			redistest.Must(t, err)
			rdb := redistest.NewServer(t).Client(t)
			limiter, err := throttle.New(rdb, policy, throttle.Config{})
			redistest.Must(t, err)
			c := NewClient(rdb, ClientConfig{Limiter: limiter})
			for {
				d, err := limiter.Allow(t.Context(), "github/acme")
				redistest.Must(t, err)
				if !d.Allowed {
					break
				}
			}
			entries := func(yield func(Entry) bool) {
				for i := range 350 {
					if !yield(Entry{Line: i + 1, Task: Task{Type: "t", Scope: fmt.Sprint("github/t", i%7), ID: fmt.Sprint("t", i)}}) {
						return
					}
				}
			}
			now := time.Now()
			sum, err := c.Forecast(t.Context(), entries, nil)
			redistest.Must(t, err)
			if in := sum.DoneAt.Sub(now); in < 700*time.Millisecond || in > 1200*time.Millisecond || sum.Binding.String() != "a member of github" {
				t.Errorf("the batch is expected to be done in %s, by %s", in, sum.Binding)
			}
			_, err = c.EnqueueBatch(t.Context(), entries, nil)
			redistest.Must(t, err)
			s, err := inspect.Of(limiter.Waitlist()).Task(t.Context(), waitlist.Ref{Scope: "github/t6", Queue: "default", ID: "t349"})
			redistest.Must(t, err)
			if in := s.Expected.In; !s.Waits || in < 500*time.Millisecond || in > most {
				t.Errorf("the last is expected in %s: %+v", in, s)
			}
			t.Log(sum.DoneAt.Sub(now), s.Expected.In)
		})
	}
}

// A batch is expected to wait for the first member of a pool with overflow_after, and to take the next one when the first is used up.
func TestForecastOfABudget(t *testing.T) {
	t.Parallel()
	for used, want := range map[int]time.Duration{1000: 4900 * time.Millisecond, 20: 1900 * time.Millisecond} {
		policy, err := limitsyaml.Parse("limits.yaml", fmt.Appendf(nil, `limits: {llm: {pool: {members: [dear, cheap], choose: drain, overflow_after: 1h}, scopes: {
			"@dear": {rules: [{name: year, algorithm: calendar, limit: %d, resets: "@yearly"}, {name: calls, algorithm: token-bucket, limit: 10, per: 1s, burst: 1}]},
			"@cheap": {rules: [{name: calls, algorithm: sliding-window, limit: 1000, per: 1s}]}}}}`, used))
		redistest.Must(t, err)
		rdb := redistest.NewServer(t).Client(t)
		limiter, err := throttle.New(rdb, policy, throttle.Config{})
		redistest.Must(t, err)
		now := time.Now()
		sum, err := NewClient(rdb, ClientConfig{Limiter: limiter}).Forecast(t.Context(), func(yield func(Entry) bool) {
			for i := 1; i <= 50 && yield(Entry{Line: i, Task: Task{Type: "t", Scope: "llm/a", ID: fmt.Sprint("t", i)}}); i++ {
			}
		}, nil)
		redistest.Must(t, err)
		if in := sum.DoneAt.Sub(now); in < want-500*time.Millisecond || in > want+500*time.Millisecond {
			t.Errorf("%d of the dear one: done in %s, want some %s", used, in, want)
		}
	}
}
