package policystore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/upstream"
)

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
	_, _, err := New(rdb, Config{}).PublishFile(t.Context(), "worker one", policyOf(t, fileOfTwo), nil)
	must(t, err)
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
// changes no rule. The next version has nothing of it, and the chain covers it.
func TestResetIsAVersion(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	user := server.User(t, []string{"hw:limits"})
	s, l := spent(t, server.Client(t), user)
	must(t, second(s.Reset(t.Context(), Edit{By: "anna", Reason: "they were double charged"}, l, "payments", "")))
	v, err := s.Current(t.Context())
	must(t, err)
	if v.Number != 2 || v.By != "anna" || v.User != user.Options().Username || v.Change != "reset payments" || v.Reason != "they were double charged" ||
		!slices.Equal(v.Resets, []Reset{{"payments", "account", "requests", 3}, {"payments", "day", "tokens", 40}}) || v.stays() != changesStay {
		t.Errorf("%+v", v)
	}
	spend(t, l)
	must(t, second(s.Reset(t.Context(), bert, l, "payments", "day")))
	must(t, set(s, bert, "payments", "account", "limit=100"))
	history, err := s.History(t.Context())
	must(t, err)
	if one := history[2]; one.Change != "reset payments day" || !slices.Equal(one.Resets, []Reset{{"payments", "day", "tokens", 40}}) || history[3].Resets != nil {
		t.Errorf("%+v, then %+v", one, history[3])
	}
	if all := changesOf(t, s); all[2] != "" || all[3] != "" {
		t.Errorf("rules changed by a reset: %v", all)
	}
	_, err = s.Verify(t.Context(), "")
	must(t, err)
	text := server.Client(t).HGet(t.Context(), s.key, "v:2").Val()
	server.Client(t).HSet(t.Context(), s.key, "v:2", strings.Replace(text, `"used":3`, `"used":4`, 1))
	if _, err := s.Verify(t.Context(), ""); !errors.As(err, new(*ChainError)) {
		t.Errorf("rewritten: %v", err)
	}
}

// The pause that an API has asked for is in the trace too.
func TestResetOfAPause(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	s, l := spent(t, rdb, rdb)
	_, err := l.Report(t.Context(), "payments", upstream.Hint{Limited: true})
	must(t, err)
	made, err := s.Reset(t.Context(), anna, l, "payments", "")
	must(t, err)
	if r := made.Version.Resets; len(r) != 3 || r[2] != (Reset{Scope: "payments"}) {
		t.Errorf("%+v", r)
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
	user.AddHook(cutting{})
	_, err := s.Reset(t.Context(), anna, l, "payments", "")
	if err == nil || !strings.Contains(err.Error(), "payments was reset (account: 3 requests, day: 40 tokens), and the history does not have it") || !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
}

// cutting fails what writes a version.
type cutting struct{}

func (cutting) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (cutting) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (cutting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "hset" && len(c.Args()) > 4 }) {
			return errors.New("the connection is gone")
		}
		return next(ctx, cmds)
	}
}
