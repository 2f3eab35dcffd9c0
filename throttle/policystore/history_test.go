package policystore

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// storied is a store with a change of every kind.
func storied(t *testing.T) (*Store, *redis.Client) {
	t.Helper()
	s, rdb := withFile(t)
	ctx := t.Context()
	must(t, set(s, anna, "payments", "account", "limit=7"), set(s, Edit{By: "bert", For: time.Hour}, "payments/acme", "tenant", "limit=500"))
	must(t, second(s.Pause(ctx, Edit{By: "bert", For: time.Hour}, "payments")))
	must(t, second(s.Resume(ctx, anna, "payments")))
	must(t, second(s.Reassign(ctx, anna, "payments", Assigned{Owner: new("payments-team"), Apps: []string{"billing"}, Weight: new(int64(3))})))
	must(t, second(s.Remove(ctx, anna, "payments", "account")))
	must(t, second(s.Import(ctx, bert, policyOf(t, "limits: {p: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"), "other.yaml", true)))
	must(t, second(s.Rollback(ctx, anna, 3)))
	must(t, second(s.Unset(ctx, anna, "", "")))
	publish(t, s, newerFile)
	return s, rdb
}

// docs/limits.md: "Each version names the hash of the one before", whatever made it.
func TestVerifySound(t *testing.T) {
	t.Parallel()
	s, _ := storied(t)
	c, err := s.Verify(t.Context(), "")
	must(t, err)
	history, err := s.History(t.Context())
	must(t, err)
	if n := len(history); c.Oldest != 1 || c.Newest != 11 || c.Sound != 11 || n != 11 || c.Hash != history[n-1].Hash || len(c.Hash) != 64 {
		t.Errorf("%+v of %d", c, n)
	}
	for i, v := range history[1:] {
		if v.Prev != history[i].Hash || v.Prev == "" {
			t.Errorf("version %d names %q, and the one before is %q", v.Number, v.Prev, history[i].Hash)
		}
	}
	c, err = s.Verify(t.Context(), strings.ToUpper(history[4].Hash))
	if err != nil || c.Noted != 5 {
		t.Errorf("%+v, %v", c, err)
	}
	// What Current says of the newest is what was written.
	if v, err := s.Current(t.Context()); err != nil || v.Hash != c.Hash {
		t.Errorf("%+v, %v", v, err)
	}
	none, _ := newStore(t)
	if _, err := none.Verify(t.Context(), ""); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

// docs/limits.md: "An author, a time or a change that was rewritten in Redis is noticed."
func TestVerifyNotices(t *testing.T) {
	t.Parallel()
	s, rdb := storied(t)
	stood := rdb.HGetAll(t.Context(), s.key).Val()
	rewrite := func(field, from, to string) func(map[string]string) {
		return func(all map[string]string) {
			if !strings.Contains(all[field], from) {
				t.Errorf("%s is %s", field, all[field])
			}
			all[field] = strings.Replace(all[field], from, to, 1)
		}
	}
	sum := sumOf(limitsyaml.Format(policyOf(t, file)))
	for name, c := range map[string]struct {
		change func(all map[string]string)
		want   int64
	}{
		"an author":         {rewrite("v:2", `"by":"anna"`, `"by":"eve"`), 2},
		"the first author":  {rewrite("v:1", `"by":"worker one"`, `"by":"eve"`), 1},
		"the newest author": {rewrite("v:11", `"by":"worker one"`, `"by":"eve"`), 11},
		"a user":            {rewrite("v:4", `"user":"default"`, `"user":"eve"`), 4},
		"a change":          {rewrite("v:2", "limit=7", "limit=8"), 2},
		"a rule":            {rewrite("v:3", "limit: 500", "limit: 5"), 3},
		"a weight":          {rewrite("v:6", `"weight":3`, `"weight":9`), 6},
		"a time":            {rewrite("v:5", `"at":"2`, `"at":"3`), 5},
		"a space":           {rewrite("v:6", "{", "{ "), 6},
		"what it names": {func(all map[string]string) {
			all["v:6"] = strings.Replace(all["v:6"], sumOf([]byte(all["v:5"])), sumOf(nil), 1)
		}, 5},
		"no text any more":         {func(all map[string]string) { all["v:6"] = "x" }, 6},
		"the text of a file":       {rewrite(sourceField+sum, "limit: 20,", "limit: 21,"), 1},
		"no file":                  {func(all map[string]string) { delete(all, sourceField+sum) }, 1},
		"one taken out":            {func(all map[string]string) { delete(all, "v:4") }, 4},
		"the newest taken out":     {func(all map[string]string) { delete(all, "v:11") }, 11},
		"two exchanged":            {func(all map[string]string) { all["v:4"], all["v:5"] = all["v:5"], all["v:4"] }, 4},
		"one more":                 {func(all map[string]string) { all["v:12"] = all["v:11"] }, 12},
		"one in disguise":          {func(all map[string]string) { all["v:+4"] = all["v:4"] }, 11},
		"an older one in force":    {func(all map[string]string) { all[currentField] = markOf(10, all["v:10"]) }, 11},
		"what is in force damaged": {func(all map[string]string) { all[currentField] = "x" }, 11},
		"without what is in force": {func(all map[string]string) { delete(all, currentField) }, 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rdb := newStore(t)
			all := maps.Clone(stood)
			c.change(all)
			rdb.HSet(t.Context(), s.key, all)
			_, err := s.Verify(t.Context(), "")
			var fault *ChainError
			if !errors.As(err, &fault) || fault.Version != c.want || !strings.Contains(err.Error(), fmt.Sprintf("version %d of the limits does not fit: ", c.want)) {
				t.Errorf("%v; want version %d", err, c.want)
			}
		})
	}
}

// A rewritten version is not covered up by the next change.
func TestVerifyNoticesLater(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	must(t, set(s, anna, "payments", "account", "limit=7"))
	text := rdb.HGet(t.Context(), s.key, "v:2").Val()
	rdb.HSet(t.Context(), s.key, "v:2", strings.Replace(text, "anna", "eve", 1))
	must(t, set(s, bert, "payments", "account", "limit=8"))
	var fault *ChainError
	if _, err := s.Verify(t.Context(), ""); !errors.As(err, &fault) || fault.Version != 2 {
		t.Errorf("%v", err)
	}
}

// docs/limits.md: "Who writes the key can write a whole new chain": only a hash that was noted
// elsewhere tells.
func TestVerifyNoted(t *testing.T) {
	t.Parallel()
	write := func(s *Store, by string) string {
		must(t, set(s, Edit{By: by}, "payments", "account", "algorithm=concurrency", "limit=7"), set(s, bert, "payments", "account", "limit=8"))
		c, err := s.Verify(t.Context(), "")
		must(t, err)
		return c.Hash
	}
	s, rdb := newStore(t)
	noted := write(s, "anna")
	rdb.Del(t.Context(), s.key)
	write(s, "eve")
	_, err := s.Verify(t.Context(), noted)
	if err == nil || !strings.Contains(err.Error(), "none of versions 1 to 2 has the hash that was noted") {
		t.Errorf("%v", err)
	}
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
	must(t, second(other.Assign(t.Context(), bert, "payments", new("team"), nil)))
	v, err := s.Current(t.Context())
	must(t, err)
	if v.User != otherUser || v.File.User != user || v.Rules[0].CreatedUser != user || v.Rules[0].UpdatedUser != otherUser ||
		v.Scopes[0].UpdatedUser != otherUser || v.Pauses[0].UpdatedUser != user {
		t.Errorf("%+v", v)
	}
	silent, _ := options("+@all", "-acl")
	must(t, set(silent, anna, "payments/acme", "tenant", "limit=300"))
	if v, err = silent.Current(t.Context()); err != nil || v.User != "" || v.By != "anna" {
		t.Errorf("%+v, %v", v, err)
	}
	// One who may only read is told so, and changes nothing.
	for name, rules := range map[string][]string{"a key to read": {"@all"}, "no commands": {"hget", "hgetall", "time"}} {
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
	must(t, second(a.Assign(ctx, anna, "payments", new("team"), nil)))
	must(t, second(a.Assign(ctx, anna, "search", new("others"), nil)))
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
	mixed("a rule that was taken back", v.Rules[0].Authorship, then.Rules[0].Authorship)
	mixed("a rule that was another one", v.Rules[1].Authorship, then.Rules[1].Authorship)
	mixed("an assignment", v.Scopes[0].Authorship, then.Scopes[0].Authorship)
	if v.Scopes[1].Authorship != then.Scopes[1].Authorship || v.Pauses[1] != then.Pauses[1] {
		t.Errorf("what was there all the time: %+v, %+v", v.Scopes[1], v.Pauses[1])
	}
	if p := v.Pauses[0]; p.Scope != "mail" || p.UpdatedBy != "bert" || p.UpdatedUser != bUser || p.Since != v.At || p.Reason != "as it was" {
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
	must(t, second(s.Assign(t.Context(), anna, "payments", new("team"), nil)))
	created, err := s.Current(t.Context())
	must(t, err)
	must(t, second(s.Reassign(t.Context(), Edit{By: "bert", Reason: "they pay more"}, "payments", Assigned{Weight: new(int64(3))})))
	must(t, second(s.Import(t.Context(), Edit{By: "carl"}, policyOf(t, "limits: {search: {owner: others}}"), "f", false)))
	v, err := s.Current(t.Context())
	must(t, err)
	if a := v.Scopes[0]; a.CreatedBy != "anna" || a.CreatedUser != "default" || !a.CreatedAt.Equal(created.At) || a.UpdatedBy != "bert" || a.Reason != "they pay more" {
		t.Errorf("%+v", a)
	}
	if a := v.Scopes[1]; a.CreatedBy != "carl" || !a.CreatedAt.Equal(v.At) {
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
	if v.Reason != "the vendor asked" || v.Pauses[0].Reason != v.Reason || v.Rules[0].Reason != "bought more" {
		t.Errorf("%+v", v)
	}
	must(t, set(s, anna, "payments/acme", "tenant", "limit=200"))
	must(t, second(s.Import(t.Context(), because(strings.Repeat("é", MaxReason/2)), policyOf(t, "limits: {}"), "f", true)))
	if v, err = s.Current(t.Context()); err != nil || len(v.Reason) != MaxReason || v.Imported.Reason != v.Reason {
		t.Errorf("%+v, %v", v, err)
	}
	history, err := s.History(t.Context())
	must(t, err)
	if before := history[len(history)-2]; before.Reason != "" || before.Rules[0].Reason != "" {
		t.Errorf("a change without a reason: %+v", before)
	}
	for _, wrong := range []string{strings.Repeat("x", MaxReason+1), "two\nlines", "\x1b[2J", "\xff"} {
		var refused *ReasonError
		if err := set(s, because(wrong), "payments", "account", "limit=1"); !errors.As(err, &refused) {
			t.Errorf("%.10q: %v", wrong, err)
		}
	}
}
