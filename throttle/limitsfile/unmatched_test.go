package limitsfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// docs/limits.md: "The log warns of it at once when a new file leaves waiting tasks without a rule", with how many, and where.
func TestLeftWithoutARule(t *testing.T) {
	t.Parallel()
	reloads(t, func(t *testing.T, r *reloading) {
		before, err := limitsyaml.Parse("limits.yaml", []byte(twoTenants))
		must(t, err)
		limiter, err := throttle.New(r.rdb, before, throttle.Config{})
		must(t, err)
		for { // what could start at once would not wait
			d, err := limiter.Decide(t.Context(), throttle.Request{Scope: "payments/acme"})
			must(t, err)
			if !d.Allowed {
				break
			}
		}
		for scope, n := range map[string]int{"payments/acme": 3, "payments/acme/refunds": 1} {
			for i := range n {
				ask := throttle.Waiter{Scope: scope, ID: fmt.Sprint(scope, i)}
				if _, err := limiter.Waitlist().Join(t.Context(), []throttle.Waiter{ask}, 0, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		must(t, limiter.Waitlist().PublishActive(t.Context(), "payments"))
		inPlace(t, r.path, strings.Replace(twoTenants, "limit: 5", "limit: 6", 1))
		later(2 * time.Second)
		r.says([]string{"limit: 6"}, []string{"!level=WARN"})
		inPlace(t, r.path, strings.Replace(twoTenants, "payments", "mail", 1))
		later(2 * time.Second)
		r.says([]string{"mail", "!payments"}, []string{"tasks wait in scopes that no rule of the new limits matches", "tasks=4 scopes=2 scope=payments/acme"})
	})
}
