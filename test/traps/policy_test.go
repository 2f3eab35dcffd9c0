package traps

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// What would not mean what it says is refused, with its line.
func TestRefusedPolicies(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{name: a, algorithm: fixed-window, limit: 5, per: -1s}":                                                                      "per",
		"{name: a, algorithm: fixed-window, limit: 5, per: 0s}":                                                                       "per",
		"{name: a, algorithm: fixed-window, limit: 5, per: -1}":                                                                       "per",
		"{name: a, algorithm: fixed-window, limit: 5, per: 0.5us}":                                                                    "per",
		"{name: a, algorithm: fixed-window, limit: 5, per: 1000d}":                                                                    "per",
		"{name: a, algorithm: fixed-window, limit: -1, per: 1s}":                                                                      "limit",
		"{name: a, algorithm: fixed-window, limit: 1.5, per: 1s}":                                                                     "limit",
		"{name: a, algorithm: fixed-window, per: 1s}":                                                                                 "limit",
		"{name: a, algorithm: token-bucket, limit: 5, per: 1s, burst: 0}":                                                             "burst",
		"{name: a, algorithm: token-bucket, limit: 5, per: 1s, burst: 0.5}":                                                           "burst",
		"{name: a, algorithm: concurrency, limit: 5, lease: 0s}":                                                                      "lease",
		"{name: a, algorithm: sliding-window, limit: 5, per: 1s}, {name: a, algorithm: fixed-window, limit: 9, per: 1h}":              "a",
		"{name: a, algorithm: sliding-window, limit: 5, per: 1s, max_permits: 9}":                                                     "max_permits",
		"{name: a, algorithm: leaky-bucket, limit: 5, per: 1s}":                                                                       "leaky-bucket",
		"{name: a, algorithm: token-bucket, limit: 1, per: 366d, burst: 1000000000000}":                                               "burst",
		"{name: a, algorithm: sliding-window, limit: 5, per: 1s}, {name: a, algorithm: sliding-window, limit: 5, per: 1s, burst: 10}": "burst",
	} {
		_, err := limitsyaml.Parse("limits.yaml", []byte("limits:\n  p:\n    rules: ["+text+"]\n"))
		faults, ok := errors.AsType[*policy.Error](err)
		if !ok || faults.Faults[0].Line != 3 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A scope that meets no rule is refused, by an error of its own; where
// a policy says that it is allowed, the answer is one that can be used.
func TestNoRules(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		ctx := context.Background()
		deny := w.limiterOn(w.rdb, w.parsed("limits: {p: {rules: [{name: a, algorithm: fixed-window, limit: 1, per: 1h}]}}"))
		d, err := deny.Allow(ctx, "q/x")
		if _, ok := errors.AsType[*policy.UnmatchedError](err); !ok || d.Allowed {
			w.Errorf("deny: %+v, %v", d, err)
		}
		allow := w.limiterOn(w.rdb, w.parsed("unmatched: allow\nlimits: {p: {rules: [{name: a, algorithm: fixed-window, limit: 1, per: 1h}]}}"))
		d, err = allow.Allow(ctx, "q/x")
		if err != nil || !d.Allowed || d.Binding != -1 || d.Tuple() != (throttle.Tuple{0, 0, 0, -1, 0}) || len(d.Header()) != 0 {
			w.Errorf("allow: %+v, %v", d, err)
		}
		if err := allow.Refund(ctx, d.Grant); err != nil {
			w.Error(err)
		}
	})
}

// A task that could never run is refused where it is made.
func TestRefusedBeforeItIsEnqueued(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		policy := w.policy(rates(10, sec)...)
		client := queue.NewClient(w.rdb, queue.ClientConfig{Policy: policy})
		name := w.prefix
		for cost, scope := range map[int64]string{11: "p/x", 1: "q/x"} {
			_, err := client.Enqueue(context.Background(), queue.Task{Type: "work", Scope: scope, Cost: cost, Queue: name})
			if _, ok := errors.AsType[*queue.InvalidError](err); !ok {
				w.Errorf("cost %d of %s: %v", cost, scope, err)
			}
		}
		if keys := w.rdb.Keys(context.Background(), "asynq:{"+name+"}*").Val(); len(keys) != 0 {
			w.Errorf("it left %q", keys)
		}
	})
}

// The five numbers and the headers are those of one rule, rounded so
// that who waits as told is admitted.
func TestOfOneRule(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		l := w.limiter(
			policy.Rule{Name: "user", Algorithm: policy.TokenBucket, Limit: 30, Per: 60 * sec, Burst: 16},
			policy.Rule{Name: "trade", Algorithm: policy.TokenBucket, Limit: 10, Per: 15 * sec, Burst: 6},
		)
		for range 8 {
			d := l.take(1)
			mine := false
			for _, r := range d.Rules {
				mine = mine || r.Tuple() == d.Tuple()
			}
			if !mine {
				w.Errorf("%v is none of %v and %v", d.Tuple(), d.Rules[0].Tuple(), d.Rules[1].Tuple())
			}
			if allowed := d.Tuple()[3] == -1; allowed != d.Allowed {
				w.Errorf("allowed %t: %v", d.Allowed, d.Tuple())
			}
		}
		d := l.take(1)
		if want := (throttle.Tuple{1, 6, 0, 2, 9}); d.Tuple() != want || d.RetryAfter != 1500*ms {
			w.Errorf("%v after %v, want %v after 1.5s", d.Tuple(), d.RetryAfter, want)
		}
		if got := d.Header().Get("Retry-After"); got != "2" || d.Header().Get("RateLimit") == "" {
			w.Errorf("headers %v", d.Header())
		}
		w.at(2 * sec)
		if !l.take(1).Allowed {
			w.Error("refused after the wait that was told")
		}
	})
}

// No verb of one tenant's touches another's.
func TestEachVerbItsOwnScope(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		policy := w.parsed(`limits: {p: {scopes: {"*": {rules: [{name: r, algorithm: sliding-window, limit: 9, per: 1h},
			{name: places, algorithm: concurrency, limit: 2, lease: 1s}]}}}}`)
		l := w.limiterOn(w.rdb, policy)
		w.at(0)
		l.decide(throttle.Request{Scope: "p/other"})
		look := func() throttle.Decision {
			d, err := l.Peek(context.Background(), throttle.Request{Scope: "p/other"})
			if err != nil {
				w.Fatal(err)
			}
			return d
		}
		before := look()
		everyVerb(w, w.rdb, policy)
		if after := look(); after.Rules[0].Remaining != before.Rules[0].Remaining || after.Rules[1].Remaining < before.Rules[1].Remaining {
			w.Errorf("%+v became %+v", before.Rules, after.Rules)
		}
	})
}
