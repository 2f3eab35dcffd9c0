package page

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/usage"
)

// How many runs failed and how many the API refused is shown by provider, to those who may see it, and of a scope with who used it.
func TestRunsOfToday(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	r, err := usage.New(s.rdb, usage.Config{App: "shop"})
	must(t, err)
	for range 10 {
		r.Spent("payments/acme", usage.By{Queue: "q"}, 1)
	}
	r.Ended("payments/acme", usage.Ends{Failed: 3, Refused: 2})
	must(t, r.Flush(t.Context()))
	_, body := s.get("/failures")
	has(t, body, "Runs of today (UTC), by provider",
		`data-label="Started" class="n">10</td>`, `data-label="Failed" class="n">3</td>`, `class="n">30 %</td>`,
		`data-label="Refused by the API" class="n">2</td>`, `class="n">20 %</td>`)
	_, body = s.get("/scope?scope=payments/acme")
	has(t, body, "Of 10 runs in the last hour 3 failed, and its API refused 2.")
	s.who = Actor{Name: "vera", Role: RoleViewer, Scopes: []string{"search"}}
	if _, body = s.get("/failures"); strings.Contains(body, "30 %") {
		t.Errorf("vera sees others:\n%s", body)
	}
}
