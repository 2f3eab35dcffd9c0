package policystore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// changesOf are the differences of each version by its number, as text.
func changesOf(t *testing.T, s *Store) map[int64]string {
	t.Helper()
	all := map[int64]string{}
	for c, err := range s.Changes(t.Context()) {
		must(t, err)
		if all[c.Version.Number] = textOf(c.Differences); !c.Known {
			all[c.Version.Number] = "unknown"
		}
	}
	return all
}

// textOf has each time as its distance from now, in whole hours.
func textOf(list []Difference) string {
	var b strings.Builder
	hours := func(word string, at time.Time) {
		if !at.IsZero() {
			fmt.Fprintf(&b, " %s %dh", word, time.Until(at).Round(time.Hour)/time.Hour)
		}
	}
	for _, d := range list {
		fmt.Fprintf(&b, "%s %s", d.Scope, d.Rule)
		if d.Before != "" {
			b.WriteString(" - " + d.Before)
		}
		hours("until", d.BeforeUntil)
		if d.After != "" {
			b.WriteString(" + " + d.After)
		}
		hours("until", d.AfterUntil)
		hours("from", d.From)
		b.WriteString("\n")
	}
	return b.String()
}

// docs/limits.md: "Each version has what it changed", whatever made it.
func TestChanges(t *testing.T) {
	t.Parallel()
	s, _ := storied(t)
	all := changesOf(t, s)
	const account, seven = "{name: account, algorithm: sliding-window, limit: 200, per: 1s}", "{name: account, algorithm: sliding-window, limit: 7, per: 1s}"
	for number, want := range map[int64]string{
		2: "payments account - " + account + " + " + seven + "\n",
		3: "payments/acme tenant + {name: tenant, algorithm: token-bucket, limit: 500, per: 1s, burst: 5} until 1h\n",
		5: "payments paused: - paused until ",
		6: "payments owner: + owner: payments-team\npayments apps: + apps: billing\npayments max_priority: + max_priority: 0\n",
		7: "payments account - " + seven + "\n",
		10: "payments account - " + seven + " + " + account + "\n" +
			"payments/acme tenant - {name: tenant, algorithm: token-bucket, limit: 500, per: 1s, burst: 5} until 1h\n",
		11: "payments/* tenant - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5} + {name: tenant, algorithm: token-bucket, limit: 30, per: 1s, burst: 5}\n",
	} {
		if got := all[number]; got != want && (number != 5 || !strings.HasPrefix(got, want)) {
			t.Errorf("version %d:\n%swant\n%s", number, got, want)
		}
	}
	has(t, all[1], "payments account + "+account, "payments/* tenant + {name: tenant")
	has(t, all[8], "p r + {name: r, algorithm: concurrency, limit: 1}", "payments owner: - owner: payments-team", "payments/* tenant - ")
	has(t, all[9], "p r - {name: r", "payments account + "+seven, "payments/acme tenant + {name: tenant, algorithm: token-bucket, limit: 500, per: 1s, burst: 5} until 1h")
}

// A change that does not show in what is in force at once is a difference too.
func TestChangesBelowWhatEnds(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	const limit = "{name: account, algorithm: sliding-window, limit: %d, per: 1s}"
	rule := func(n int) string { return fmt.Sprintf(limit, n) }
	hours := func(n time.Duration) Edit { return Edit{By: "anna", For: n * time.Hour} }
	must(t, set(s, hours(2), "payments", "account", "limit=500"), set(s, anna, "payments", "account", "limit=100"),
		set(s, hours(5), "payments", "account", "limit=500"), set(s, hours(3), "payments", "account", "limit=600"))
	must(t, second(s.Unset(t.Context(), anna, "payments", "account")))
	must(t, set(s, hours(3), "payments", "account", "limit=200"))
	all := changesOf(t, s)
	for number, want := range map[int64]string{
		2: "- " + rule(200) + " + " + rule(500) + " until 2h",
		3: "- " + rule(200) + " + " + rule(100) + " from 2h",
		4: "- " + rule(500) + " until 2h + " + rule(500) + " until 5h",
		5: "- " + rule(500) + " until 5h + " + rule(600) + " until 3h",
		6: "- " + rule(600) + " until 3h + " + rule(200),
		7: "- " + rule(200) + " + " + rule(200) + " until 3h",
	} {
		if all[number] != "payments account "+want+"\n" {
			t.Errorf("version %d:\n%swant\n%s", number, all[number], want)
		}
	}
	list, err := s.Compare(t.Context(), 2, 4)
	must(t, err)
	if got, want := textOf(list), "payments account - "+rule(500)+" until 2h + "+rule(500)+" until 5h\n"+
		"payments account - "+rule(200)+" + "+rule(100)+" from 5h\n"; got != want {
		t.Errorf("%swant\n%s", got, want)
	}
	if list, err = s.Compare(t.Context(), 4, 4); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err = s.Compare(t.Context(), 4, 40); err == nil || !strings.Contains(err.Error(), "version 40") {
		t.Error(err)
	}
}

// What ended by itself is no change of the version that came after it.
func TestChangesWithoutWhatHasEnded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		must(t, set(s, Edit{By: "anna", For: time.Hour}, "payments", "account", "limit=7"))
		pass(2 * time.Hour)
		m.SetTime(time.Now())
		must(t, set(s, anna, "payments/acme", "tenant", "limit=7"))
		list := changesOf(t, s)
		if got := list[3]; strings.Contains(got, "account") || !strings.Contains(got, "payments/acme tenant + ") {
			t.Error(got)
		}
	})
}

// A version whose predecessor is gone, or damaged, does not say what it changed.
func TestChangesThatAreNotKnown(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	for i := range 4 {
		must(t, set(s, anna, "payments", "account", fmt.Sprintf("limit=%d", i)))
	}
	rdb.HDel(t.Context(), s.key, "v:1")
	rdb.HSet(t.Context(), s.key, "v:3", "{}")
	all := changesOf(t, s)
	for number, known := range map[int64]bool{2: false, 3: false, 4: false, 5: true} {
		if (all[number] != "unknown") != known {
			t.Errorf("version %d: %s", number, all[number])
		}
	}
	none, _ := newStore(t)
	if all := changesOf(t, none); len(all) != 0 {
		t.Error(all)
	}
}
