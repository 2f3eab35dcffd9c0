package sweep

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// "The process that looks after a provider's waiting tasks asks for the names of all of them as often": a task that nobody touches starts
// by its new tier within two minutes.
func TestSweepRenewsTiers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		rules := func(limit int64) policy.ScopeConfig {
			return policy.ScopeConfig{Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour}}}
		}
		pol, err := policy.New("", map[string]policy.ScopeConfig{"p": {
			Tiers: map[string]policy.ScopeConfig{"gold": rules(9)}, Scopes: map[string]policy.ScopeConfig{"*": rules(1)},
		}})
		redistest.Must(t, err)
		var tier atomic.Value
		tier.Store("")
		l, err := throttle.New(rdb, pol, throttle.Config{TierOf: func(context.Context, policy.Scope) (string, error) { return tier.Load().(string), nil }})
		redistest.Must(t, err)
		_, err = l.Waitlist().Join(t.Context(), []waitlist.Waiter{{Scope: "p/acme", Queue: "q", ID: "a"}, {Scope: "p/acme", Queue: "q", ID: "b"}})
		redistest.Must(t, err)
		granted := func() int {
			d, err := l.Waitlist().Dispatch(t.Context(), waitlist.Request{Provider: "p", Lead: time.Millisecond, Max: 9, Serves: []wire.Weighted{{Queue: "q", Weight: 1}}})
			redistest.Must(t, err)
			return len(d.Granted)
		}
		if n := granted(); n != 1 {
			t.Fatalf("%d tasks started under a limit of 1", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Run(ctx, Config{
				Redis: rdb, Limiter: l, Providers: func() []string { return []string{"p"} }, Gone: func(waitlist.Ref) {},
				Failed: func(kind string) { t.Error(kind) },
			})
		}()
		tier.Store("gold")
		<-time.After(2*time.Minute + claimEach)
		if n := granted(); n != 1 {
			t.Errorf("%d more tasks started by the new tier", n)
		}
		cancel()
		<-ended
	})
}
