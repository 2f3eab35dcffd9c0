package policystore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// "The last 1,000 are kept, for 366 days after the newest", newest first, with who, why and what.
func TestActions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	prefix := redistest.Prefix(t)
	s := New(rdb, Config{Prefix: prefix})
	if list, err := s.Actions(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("before any: %v, %v", list, err)
	}
	want := Action{
		By: "anna", Via: "page", Verb: "move", Scope: "payments/acme", Queue: "low", Scopes: []string{"payments/acme"}, To: "payments/bulk",
		Reason: "too many", Changed: 2, Left: 1, TaskIDs: []string{"a", "b", "c"},
	}
	must(t, s.RecordAction(t.Context(), want))
	list, err := s.Actions(t.Context())
	if err != nil || len(list) != 1 || time.Since(list[0].At).Abs() > time.Minute {
		t.Fatalf("%+v, %v", list, err)
	}
	want.At = list[0].At
	if got := fmt.Sprintf("%+v", list[0]); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %s\nwant %+v", got, want)
	}
	for i := range KeptActions {
		must(t, s.RecordAction(t.Context(), Action{By: "ben", Verb: "cancel", Changed: i}))
	}
	if list, err = s.Actions(t.Context()); err != nil || len(list) != KeptActions || list[0].Changed != KeptActions-1 || list[KeptActions-1].Changed != 0 {
		t.Errorf("%d actions, %v", len(list), err)
	}
	if ttl := rdb.PTTL(t.Context(), prefix+":limits:actions").Val(); ttl < 365*24*time.Hour {
		t.Errorf("they are kept for %s", ttl)
	}
	if err := s.RecordAction(t.Context(), Action{By: "anna", Reason: strings.Repeat("x", MaxReason+1)}); !errors.As(err, new(*RefusedError)) {
		t.Errorf("a long reason: %v", err)
	}
	if err := s.RecordAction(t.Context(), Action{By: " "}); err == nil {
		t.Error("nobody has done it")
	}
	rdb.RPush(t.Context(), prefix+":limits:actions", "{")
	if list, err = s.Actions(t.Context()); err != nil || len(list) != KeptActions {
		t.Errorf("with a damaged one: %d, %v", len(list), err)
	}
}

// "NeverAdmitted reports whether a task was admitted by none of the past limits", and only for a cost.
func TestNeverAdmitted(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	must(t, set(s, anna, "mail", "plan", "algorithm=sliding-window", "limit=10", "per=1s"))
	must(t, second(s.Unset(t.Context(), anna, "mail", "")))
	must(t, set(s, anna, "payments/*", "tenant", "burst=2"))
	limiter, err := throttle.New(rdb, policyOf(t, "limits: {search: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"), throttle.Config{Prefix: redistest.Prefix(t)})
	must(t, err)
	limiter.SetPolicy(policyOf(t, "limits: {}"))
	never := NeverAdmitted(s, limiter)
	unmatched, cost := error(&policy.UnmatchedError{}), error(&policy.CostError{})
	for _, c := range []struct {
		ask   throttle.Request
		why   error
		never bool
	}{
		{throttle.Request{Scope: "other/a"}, unmatched, false},   // a rule may come
		{throttle.Request{Scope: "mail", Cost: 10}, cost, false}, // set live, and gone
		{throttle.Request{Scope: "mail", Cost: 11}, cost, true},
		{throttle.Request{Scope: "search/x"}, cost, false}, // in this process alone
		{throttle.Request{Scope: "payments/a", Cost: 5}, cost, false},
		{throttle.Request{Scope: "payments/a", Cost: 6}, cost, true},
		{throttle.Request{Scope: "payments/a", Costs: policy.Costs{"requests": 5}}, cost, false},
		{throttle.Request{Scope: "payments/a", Costs: policy.Costs{"requests": 6}}, cost, true},
	} {
		if got := never(t.Context(), c.ask, c.why); got != c.never {
			t.Errorf("%+v, %T: %t", c.ask, errors.Unwrap(c.why), got)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if NeverAdmitted(s, limiter)(stopped, throttle.Request{Scope: "mail", Cost: 11}, cost) {
		t.Error("the store cannot be asked, and a task is said to be hopeless")
	}
	must(t, set(s, anna, "other", "plan", "algorithm=sliding-window", "limit=10", "per=1s"))
	limiter.SetPolicy(policyOf(t, "limits: {}")) // as Follow does
	if never(t.Context(), throttle.Request{Scope: "other/a", Cost: 10}, cost) {
		t.Error("the new version is not known")
	}
}

// UnmatchedSince names the version that took a scope's rules away, however many came after it, and none for a scope that never
// met a rule.
func TestUnmatchedSince(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	must(t, set(s, anna, "mail", "plan", "algorithm=sliding-window", "limit=10", "per=1s"))
	gone, err := s.Remove(t.Context(), bert, "mail", "plan")
	must(t, err)
	must(t, set(s, anna, "payments/*", "tenant", "burst=2"))
	for scope, want := range map[string]int64{"mail": gone.Version.Number, "mail/below": gone.Version.Number, "never": 0} {
		since, known, err := s.UnmatchedSince(t.Context(), scope)
		if err != nil || since.Number != want || known != (want > 0) || known && since.By != "bert" {
			t.Errorf("%s: version %d by %q, %t, %v; want version %d", scope, since.Number, since.By, known, err, want)
		}
	}
	if _, _, err := s.UnmatchedSince(t.Context(), "a//b"); !errors.As(err, new(*policy.ScopeError)) {
		t.Errorf("a//b: %v", err)
	}
}

// "Preview returns the policy that would be in force after a starting process had published p", for whatever stands there, "and changes nothing".
func TestPreview(t *testing.T) {
	t.Parallel()
	ours := policyOf(t, newerFile)
	for name, prepare := range map[string]func(t *testing.T, s *Store){
		"nothing":       func(*testing.T, *Store) {},
		"another file":  func(t *testing.T, s *Store) { publish(t, s, file) },
		"the same file": func(t *testing.T, s *Store) { publish(t, s, newerFile) },
		"live changes": func(t *testing.T, s *Store) {
			publish(t, s, file)
			must(t, set(s, anna, "payments", "account", "limit=7"), paused(s, anna, "search"))
		},
		"an import": func(t *testing.T, s *Store) {
			publish(t, s, file)
			must(t, second(s.Import(t.Context(), anna, policyOf(t, "limits: {p: {owner: x}}"), "f", true)))
		},
		"a newer file, and no worker": func(t *testing.T, s *Store) {
			publish(t, s, newerFile)
			publish(t, s, file)
		},
		"a newer file": func(t *testing.T, s *Store) {
			publish(t, s, newerFile)
			publish(t, s, file)
			newAnnouncer(s, Process{Worker: true}).renew(t.Context(), 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rdb := newStore(t)
			prepare(t, s)
			stood := rdb.HGetAll(t.Context(), s.key).Val()
			before, err := s.Preview(t.Context(), ours)
			must(t, err)
			if is := rdb.HGetAll(t.Context(), s.key).Val(); len(is) != len(stood) || is[markField] != stood[markField] {
				t.Errorf("%v, and before %v", is, stood)
			}
			_, _, err = s.PublishFile(t.Context(), "worker one", ours, false)
			must(t, err)
			if is := s.nowSays(t); is != string(limitsyaml.Format(before)) {
				t.Errorf("foreseen:\n%s\nand it is\n%s", limitsyaml.Format(before), is)
			}
		})
	}
	none, _ := newStore(t)
	if _, err := none.Preview(t.Context(), nil); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

// publish has worker one publish a file.
func publish(t *testing.T, s *Store, text string) {
	t.Helper()
	_, _, err := s.PublishFile(t.Context(), "worker one", policyOf(t, text), false)
	must(t, err)
}

const fileOfTwo = `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1h}
      - {name: day, algorithm: fixed-window, limit: 200, per: 24h, unit: tokens}
`

// spent is a store with a limiter of which units were spent.
func spent(t *testing.T, rdb redis.UniversalClient, user redis.UniversalClient) (*Store, *throttle.Limiter) {
	t.Helper()
	s := New(user, Config{})
	publish(t, New(rdb, Config{}), fileOfTwo)
	l, err := throttle.New(rdb, policyOf(t, fileOfTwo), throttle.Config{})
	must(t, err)
	spend(t, l)
	return s, l
}

func spend(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	d, err := l.Decide(t.Context(), throttle.Request{Scope: "payments", Costs: map[string]int64{"requests": 3, "tokens": 40}})
	must(t, err)
	if !d.Allowed {
		t.Fatalf("%+v", d)
	}
}

// docs/limits.md: "A reset is a version": it says who reset which rule, by which Redis user, why, and how much had been used, and
// changes no rule. The next version has nothing of it.
func TestResetIsAVersion(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	user := server.User(t, []string{"hw:limits"})
	s, l := spent(t, server.Client(t), user)
	must(t, second(s.Reset(t.Context(), Edit{By: "anna", Reason: "they were double charged"}, l, "payments", "")))
	v, err := s.Current(t.Context())
	must(t, err)
	if v.Number != 2 || v.By != "anna" || v.User != user.Options().Username || v.Change != "reset payments" || v.Reason != "they were double charged" ||
		!slices.Equal(v.Resets, []Reset{{"payments", "account", "requests", 3}, {"payments", "day", "tokens", 40}}) {
		t.Errorf("%+v", v)
	}
	spend(t, l)
	must(t, second(s.Reset(t.Context(), bert, l, "payments", "day")))
	must(t, set(s, bert, "payments", "account", "limit=100"))
	history := historyOf(t, s)
	if one := history[2]; one.Change != "reset payments day" || !slices.Equal(one.Resets, []Reset{{"payments", "day", "tokens", 40}}) || history[3].Resets != nil {
		t.Errorf("%+v, then %+v", one, history[3])
	}
	if all := changesOf(t, s); all[2] != "" || all[3] != "" {
		t.Errorf("rules changed by a reset: %v", all)
	}
}

// "A user that may not change the limits resets nothing", and neither does one that meant another version, or names no rule.
func TestResetThatIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	s, l := spent(t, rdb, rdb)
	reader := New(server.User(t, nil, "@all", "%R~hw:limits*"), Config{})
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	for name, c := range map[string]struct {
		store *Store
		edit  Edit
		rule  string
		want  func(error) bool
	}{
		"no permission":   {reader, anna, "", is(ErrNotPermitted)},
		"another version": {s, Edit{By: "anna", IfVersion: 9}, "", func(err error) bool { return errors.As(err, new(*ConflictError)) }},
		"no such rule":    {s, anna, "other", is(ErrNothingToReset)},
		"nobody":          {s, Edit{}, "", func(err error) bool { return err != nil }},
	} {
		if _, err := c.store.Reset(t.Context(), c.edit, l, "payments", c.rule); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	done, err := l.Reset(t.Context(), "payments", "account")
	must(t, err)
	if v, err := s.Current(t.Context()); err != nil || v.Number != 1 || done[0].Used != 3 {
		t.Errorf("%+v, %v, %+v", v, err, done)
	}
}

// "should Redis fail between the two, it says what was reset and is not in the history".
func TestResetWithoutATrace(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	user := server.Client(t)
	s, l := spent(t, server.Client(t), user)
	user.AddHook(before(func(_ bool, cmds ...redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "hset" && len(c.Args()) > 4 }) { // a version is written
			return errors.New("the connection is gone")
		}
		return nil
	}))
	_, err := s.Reset(t.Context(), anna, l, "payments", "")
	if err == nil || !strings.Contains(err.Error(), "payments was reset (account: 3 requests, day: 40 tokens), and the history does not have it") || !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
}

// historyOf are the versions that are kept.
func historyOf(t *testing.T, s *Store) (list []Version) {
	t.Helper()
	for c, err := range s.Changes(t.Context()) {
		must(t, err)
		list = append(list, c.Version)
	}
	return list
}
