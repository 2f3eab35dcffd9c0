package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

// docs/limits.md: "acme's tasks at priority 1000000 take turns with those of its neighbours", however they are enqueued:
// by a program that plans them, by one that does not, and by asynq's own client.
func TestCappedTenantTakesTurns(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueued {
		for _, capped := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, capped: %t", name, capped), func(t *testing.T) {
				t.Parallel()
				s := newOneByOne(t, asynq.Config{})
				s.throttle.cfg.Limiter.SetPolicy(sharedBy(t, capped))
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
				if capped && (acmes < 4 || acmes > 6) || !capped && acmes != 10 {
					t.Errorf("%d of 10 starts are acme's: %v", acmes, started)
				}
			})
		}
	}
}

// sharedBy is an API with one place, that tenants share.
func sharedBy(t *testing.T, capped bool) *throttle.Policy {
	t.Helper()
	every := throttle.Node{}
	if capped {
		every.MaxPriority = new(0)
	}
	policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{"p": {Rules: full(0), Scopes: map[string]throttle.Node{"*": every}}})
	if err != nil {
		t.Fatal(err)
	}
	return policy
}
