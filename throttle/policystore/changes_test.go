package policystore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

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

// docs/breaker.md, "By hand": what opens or closes a breaker is a version, with its author and for how long, and changes no rule. What is
// refused changes nothing.
func TestBreakerIsAVersion(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	pol := policyOf(t, `{limits: {p: {breaker: {wait: 1m}, rules: [{name: r, algorithm: sliding-window, limit: 9, per: 1s}], scopes: {"*": {}}}}}`)
	s := New(rdb, Config{})
	_, _, err := s.PublishFile(t.Context(), "worker one", pol, false)
	must(t, err)
	l, err := throttle.New(rdb, pol, throttle.Config{})
	must(t, err)
	open := func(s *Store, e Edit, scope string) error { return second(s.OpenBreaker(t.Context(), e, l, scope)) }
	hour := Edit{By: "anna", For: time.Hour, Reason: "it melts"}
	must(t, open(s, hour, "p"))
	state, err := l.UpstreamState(t.Context(), "p/a")
	if err != nil || len(state.Breakers) != 1 || state.Breakers[0].Next.Sub(state.Breakers[0].Since) != time.Hour {
		t.Errorf("%+v, %v", state, err)
	}
	must(t, second(s.CloseBreaker(t.Context(), anna, l, "p")))
	history := historyOf(t, s)
	if v := history[1]; v.Change != "open p for 1h0m0s" || v.Breaker != "p" || v.By != "anna" || v.Reason != "it melts" {
		t.Errorf("%+v", v)
	}
	if v := history[2]; v.Change != "close p" || v.Breaker != "p" || changesOf(t, s)[2]+changesOf(t, s)[3] != "" {
		t.Errorf("%+v", v)
	}
	reader := New(server.User(t, nil, "@all", "%R~hw:limits*"), Config{})
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"closed":          {second(s.CloseBreaker(t.Context(), anna, l, "p")), ErrUnchanged.Error()},
		"above":           {open(s, anna, "p/a"), "p/a has no breaker of its own; that of p stops it too"},
		"a pattern":       {open(s, anna, "p/*"), `throttle: scope "p/*": name 2 is "*", which stands for every name`},
		"none":            {open(s, anna, "other"), "other has no breaker of its own"},
		"too long":        {open(s, Edit{By: "anna", For: 25 * time.Hour}, "p"), "policystore: a breaker opens for 24h at most; pause the scope for longer"},
		"another version": {open(s, Edit{By: "anna", IfVersion: 9}, "p"), "policystore: meant for version 9, and the limits are at version 3"},
		"no permission":   {open(reader, anna, "p"), ErrNotPermitted.Error()},
	} {
		if c.err == nil || !strings.HasPrefix(c.err.Error(), c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if state, err := l.UpstreamState(t.Context(), "p"); err != nil || len(state.Breakers) > 0 || len(historyOf(t, s)) != 3 {
		t.Errorf("%+v, %v", state, err)
	}
	// "Also ends a pause that its API asked for."
	_, err = l.Report(t.Context(), "p/b", upstream.Hint{Limited: true, Retry: time.Hour, RetryKnown: true})
	must(t, err)
	must(t, second(s.CloseBreaker(t.Context(), anna, l, "p/b")))
	if d, err := l.Allow(t.Context(), "p/b"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
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
