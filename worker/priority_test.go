package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

// docs/limits.md: "tenants with the same cap take turns, however their tasks are enqueued": in a batch, one by one,
// and by asynq's own client. Without a cap acme goes first.
func TestCappedTenantTakesTurns(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueued {
		for what, limit := range map[string]*int{"capped": new(0), "not capped": nil} {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				s := newOneByOne(t, asynq.Config{})
				s.throttle.cfg.Limiter.SetPolicy(sharedBy(t, limit))
				meek, greedy := of("default", "p/globex", 12), of("default", "p/acme", 11)
				for i := range meek {
					meek[i].ID = fmt.Sprintf("globex %d", i)
				}
				for i := range greedy {
					greedy[i].ID, greedy[i].Priority = fmt.Sprintf("acme %d", i), queue.MaxPriority
				}
				enqueue(s, meek)
				s.waiting(11, "globex")
				enqueue(s, greedy)
				s.waiting(22, "globex", "acme")
				s.let(10)
				s.until("10 more have started", func() bool { return len(s.started()) == 10 })
				started := s.started()
				acmes := strings.Count(strings.Join(started, " "), "acme")
				if limit != nil && (acmes < 4 || acmes > 6) || limit == nil && acmes != 10 {
					t.Errorf("%d of 10 starts are acme's: %v", acmes, started)
				}
			})
		}
	}
}

// sharedBy is an API with one place, that tenants share, each with a cap or none.
func sharedBy(t *testing.T, maxPriority *int) *policy.Policy {
	t.Helper()
	limits := map[string]policy.ScopeConfig{"p": {Rules: full(0), Scopes: map[string]policy.ScopeConfig{"*": {MaxPriority: maxPriority}}}}
	policy, err := policy.New(policy.UnmatchedDeny, limits)
	must(t, err)
	return policy
}
