package policystore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// The policies of a time are those that were in force, what was set for a time until it ended, oldest first.
func TestPeriods(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	must(t, set(s, Edit{By: "anna", For: time.Hour}, "payments/acme", "tenant", "limit=500"), set(s, bert, "payments", "account", "limit=7"))
	versions, err := s.History(t.Context())
	if err != nil || len(versions) != 3 {
		t.Fatalf("%+v, %v", versions, err)
	}
	acme, err := policy.ParseScope("payments/acme")
	must(t, err)
	says := func(from, to time.Time) string {
		t.Helper()
		periods, err := s.Periods(t.Context(), from, to)
		must(t, err)
		var lines []string
		for _, p := range periods {
			bounds, err := p.Policy.MatchAt(acme, p.From)
			if err != nil || len(bounds) != 2 {
				t.Fatalf("%+v, %v", bounds, err)
			}
			lines = append(lines, fmt.Sprintf("%s %d %d", p.From.Sub(versions[0].InForce), bounds[0].Rule.Limit, bounds[1].Rule.Limit))
		}
		return strings.Join(lines, ", ")
	}
	began, second, third := versions[0].InForce, versions[1].InForce.Sub(versions[0].InForce), versions[2].InForce.Sub(versions[0].InForce)
	ends := versions[1].Rules[0].Until.Sub(began)
	all := fmt.Sprintf("0s 200 20, %s 200 500, %s 7 500, %s 7 20", second, third, ends)
	for _, one := range []struct {
		from, to time.Duration
		want     string
	}{
		{-time.Hour, 2 * time.Hour, all},
		{0, 2 * time.Hour, all},
		{third + time.Second, 30 * time.Minute, fmt.Sprintf("%s 7 500", third+time.Second)},
		{90 * time.Minute, 2 * time.Hour, "1h30m0s 7 20"},
		{-2 * time.Hour, -time.Hour, ""},
		{-time.Hour, second / 2, "0s 200 20"},
	} {
		if got := says(began.Add(one.from), began.Add(one.to)); got != one.want {
			t.Errorf("%s to %s: %s, want %s", one.from, one.to, got, one.want)
		}
	}
	rdb.HSet(t.Context(), s.key, fieldOf(3), "{")
	if got := says(began, began.Add(2*time.Hour)); got != fmt.Sprintf("0s 200 20, %s 200 500, %s 200 20", second, ends) {
		t.Errorf("without the third: %s", got)
	}
}
