package policystore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// storied is a store with a change of every kind.
func storied(t *testing.T) (*Store, *redis.Client) {
	t.Helper()
	s, rdb := withFile(t)
	ctx := t.Context()
	must(t, set(s, anna, "payments", "account", "limit=7"), set(s, Edit{By: "bert", For: time.Hour}, "payments/acme", "tenant", "limit=500"))
	must(t, second(s.Pause(ctx, Edit{By: "bert", For: time.Hour}, "payments")))
	must(t, second(s.Resume(ctx, anna, "payments")))
	must(t, second(s.Assign(ctx, anna, "payments", Assigned{Owner: new("payments-team"), Apps: []string{"billing"}, Weight: new(int64(3))})))
	must(t, second(s.Remove(ctx, anna, "payments", "account")))
	must(t, second(s.Import(ctx, bert, policyOf(t, "limits: {p: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"), "other.yaml", true)))
	must(t, second(s.Rollback(ctx, anna, 3)))
	must(t, second(s.Unset(ctx, anna, "", "")))
	publish(t, s, newerFile)
	return s, rdb
}

// docs/limits.md: "-as is a label", and the Redis user stands beside it in all that a change writes.
func TestUserIsRecorded(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	options := func(commands ...string) (*Store, string) {
		rdb := server.User(t, []string{"hw:limits"}, commands...)
		return New(rdb, Config{}), rdb.Options().Username
	}
	s, user := options()
	publish(t, s, file)
	must(t, set(s, Edit{By: "default"}, "payments/acme", "tenant", "limit=100"), paused(s, anna, "payments"))
	other, otherUser := options()
	must(t, set(other, bert, "payments/acme", "tenant", "limit=200"))
	must(t, second(other.Assign(t.Context(), bert, "payments", Assigned{Owner: new("team")})))
	v, err := s.Current(t.Context())
	must(t, err)
	rule, owner, pause := v.Overrides[2], v.Overrides[0], v.Overrides[1]
	if v.User != otherUser || v.File.User != user || rule.CreatedUser != user || rule.UpdatedUser != otherUser || owner.UpdatedUser != otherUser || pause.UpdatedUser != user {
		t.Errorf("%+v", v)
	}
	silent, _ := options("+@all", "-acl")
	must(t, set(silent, anna, "payments/acme", "tenant", "limit=300"))
	if v, err = silent.Current(t.Context()); err != nil || v.User != "" || v.By != "anna" {
		t.Errorf("%+v, %v", v, err)
	}
	// One who may only read is told so, and changes nothing.
	for name, rules := range map[string][]string{"a key to read": {"@all"}, "no commands": {"hmget", "time"}} {
		rdb := server.User(t, nil, append(rules, "%R~hw:limits*")...)
		if err := set(New(rdb, Config{}), anna, "payments", "account", "limit=1"); !errors.Is(err, ErrNotPermitted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := s.Current(t.Context()); err != nil || now.Number != v.Number {
		t.Errorf("%+v, %v", now, err)
	}
}

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
		6: "payments owner: + owner: payments-team\npayments apps: + apps: billing\npayments weight: + weight: 3\n",
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

// docs/limits.md: "A rollback is the author of what it brought back, and the first author stays": rules, assignments, pauses
// and the file alike. What was there all the time keeps its authors.
func TestRollbackSaysWhoRolledBack(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	first := server.User(t, []string{"hw:limits"})
	other := server.User(t, []string{"hw:limits"})
	a, b := New(first, Config{}), New(other, Config{})
	aUser, bUser := first.Options().Username, other.Options().Username
	ctx := t.Context()
	publish(t, a, file)
	must(t, set(a, anna, "payments", "account", "limit=7"), set(a, anna, "payments/acme", "tenant", "limit=100"), paused(a, anna, "search"), paused(a, anna, "mail"))
	must(t, second(a.Assign(ctx, anna, "payments", Assigned{Owner: new("team")})))
	must(t, second(a.Assign(ctx, anna, "search", Assigned{Owner: new("others")})))
	then, err := a.Current(ctx)
	must(t, err)
	must(t, second(a.Unset(ctx, anna, "payments", "")))
	must(t, second(a.Resume(ctx, anna, "mail")))
	must(t, set(a, anna, "payments/acme", "tenant", "limit=200"))
	publish(t, a, newerFile)

	must(t, second(b.Rollback(ctx, Edit{By: "bert", Reason: "as it was"}, then.Number)))
	v, err := b.Current(ctx)
	must(t, err)
	if v.Reason != "as it was" || v.Imported == nil || v.Imported.By != "bert" || v.Imported.User != bUser || v.Imported.Reason != v.Reason || v.Imported.Sum != then.File.Sum {
		t.Errorf("%+v, over %+v", v, v.Imported)
	}
	mixed := func(what string, got, was Authorship) {
		t.Helper()
		want := Authorship{was.CreatedBy, was.CreatedUser, was.CreatedAt, "bert", bUser, v.At, "as it was"}
		if got != want || got.CreatedBy != "anna" || got.CreatedUser != aUser || got.CreatedAt.IsZero() {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	is, was := v.Overrides, then.Overrides
	mixed("a rule that was taken back", is[1].Authorship, was[1].Authorship)
	mixed("an assignment", is[2].Authorship, was[2].Authorship)
	mixed("a rule that was another one", is[3].Authorship, was[3].Authorship)
	if !slices.Equal(is[4:], was[4:]) {
		t.Errorf("what was there all the time: %+v", is[4:])
	}
	if p := is[0]; p.Scope != "mail" || p.UpdatedBy != "bert" || p.UpdatedUser != bUser || p.CreatedAt != v.At || p.Reason != "as it was" {
		t.Errorf("a pause: %+v", p)
	}
	if _, err := b.Rollback(ctx, bert, then.Number); !errors.Is(err, ErrUnchanged) {
		t.Errorf("again: %v", err)
	}
}

// An assignment has its first author beside the last one.
func TestAssignKeepsWhoCreatedIt(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	must(t, second(s.Assign(t.Context(), anna, "payments", Assigned{Owner: new("team")})))
	created, err := s.Current(t.Context())
	must(t, err)
	must(t, second(s.Assign(t.Context(), Edit{By: "bert", Reason: "they pay more"}, "payments", Assigned{Owner: new("others")})))
	must(t, second(s.Import(t.Context(), Edit{By: "carl"}, policyOf(t, "limits: {search: {owner: others}}"), "f", false)))
	v, err := s.Current(t.Context())
	must(t, err)
	if a := v.Overrides[0]; a.CreatedBy != "anna" || a.CreatedUser != "default" || !a.CreatedAt.Equal(created.At) || a.UpdatedBy != "bert" || a.Reason != "they pay more" {
		t.Errorf("%+v", a)
	}
	if a := v.Overrides[1]; a.CreatedBy != "carl" || !a.CreatedAt.Equal(v.At) {
		t.Errorf("%+v", a)
	}
}

// "Reason is why, up to MaxReason bytes of printable text": of the version and of all that it makes or changes.
func TestReason(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	because := func(reason string) Edit { return Edit{By: "anna", Reason: reason} }
	must(t, set(s, because("bought more"), "payments/acme", "tenant", "limit=100"))
	must(t, second(s.Pause(t.Context(), because("the vendor asked"), "payments")))
	v, err := s.Current(t.Context())
	must(t, err)
	if v.Reason != "the vendor asked" || v.Overrides[0].Reason != v.Reason || v.Overrides[1].Reason != "bought more" {
		t.Errorf("%+v", v)
	}
	must(t, set(s, anna, "payments/acme", "tenant", "limit=200"))
	must(t, second(s.Import(t.Context(), because(strings.Repeat("é", MaxReason/2)), policyOf(t, "limits: {}"), "f", true)))
	if v, err = s.Current(t.Context()); err != nil || len(v.Reason) != MaxReason || v.Imported.Reason != v.Reason {
		t.Errorf("%+v, %v", v, err)
	}
	history := historyOf(t, s)
	if before := history[len(history)-2]; before.Reason != "" || before.Overrides[1].Reason != "" {
		t.Errorf("a change without a reason: %+v", before)
	}
	for _, wrong := range []string{strings.Repeat("x", MaxReason+1), "two\nlines", "\x1b[2J", "\xff"} {
		var refused *RefusedError
		if err := set(s, because(wrong), "payments", "account", "limit=1"); !errors.As(err, &refused) {
			t.Errorf("%.10q: %v", wrong, err)
		}
	}
}
