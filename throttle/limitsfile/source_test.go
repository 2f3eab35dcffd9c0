package limitsfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// readOf is a limits file as a worker reads it that starts.
func readOf(t *testing.T, path string) File {
	t.Helper()
	read, err := Read(t.Context(), path)
	must(t, err)
	return read
}

// expect holds a text against parts that it must have, or, behind a "!", must not.
func expect(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if want, missing := strings.CutPrefix(part, "!"); missing == strings.Contains(text, want) {
			t.Errorf("%q is missing: %t, in\n%s", want, !missing, text)
		}
	}
}

const oneRule = "limits:\n  payments:\n    rules:\n      - {name: account, algorithm: sliding-window, limit: 200, per: 1s}\n"

// docs/limits.md: "The log warns of it at once when a new file leaves waiting tasks without a rule", with how many, and where.
func TestLeftWithoutARule(t *testing.T) {
	t.Parallel()
	reloads(t, func(t *testing.T, r *reloading) {
		before, err := limitsyaml.Parse("limits.yaml", []byte(twoTenants))
		must(t, err)
		limiter, err := throttle.New(r.rdb, before, throttle.Config{})
		must(t, err)
		for scope, n := range map[string]int{"payments/acme": 3, "payments/acme/refunds": 1} {
			for i := range n {
				ask := waitlist.Waiter{Scope: scope, Queue: "default", ID: fmt.Sprint(scope, i)}
				_, err := limiter.Waitlist().Join(t.Context(), []waitlist.Waiter{ask})
				must(t, err)
			}
		}
		inPlace(t, r.path, strings.Replace(twoTenants, "limit: 5", "limit: 6", 1))
		later(2 * time.Second)
		r.says([]string{"limit: 6"}, []string{"!level=WARN"})
		inPlace(t, r.path, strings.Replace(twoTenants, "payments", "mail", 1))
		later(2 * time.Second)
		r.says([]string{"mail", "!payments"}, []string{"tasks wait in scopes that no rule of the new limits matches", "tasks=4 scopes=2 scope=payments/acme"})
	})
}
