package policystore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const file = `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1s}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}
`

func policyOf(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	must(t, err)
	return p
}

func newStore(t *testing.T) (*Store, *redis.Client) {
	t.Helper()
	rdb := redistest.Client(t)
	return New(rdb, Config{Prefix: redistest.Prefix(t)}), rdb
}

// withFile is a store that a worker has published the file in.
func withFile(t *testing.T) (*Store, *redis.Client) {
	t.Helper()
	s, rdb := newStore(t)
	publish(t, s, file)
	return s, rdb
}

var anna, bert = Edit{By: "anna"}, Edit{By: "bert"}

// now is what the store says now.
func (s *Store) nowSays(t *testing.T) string {
	t.Helper()
	v, err := s.Current(t.Context())
	must(t, err)
	at, err := s.Time(t.Context())
	must(t, err)
	p, _, err := s.Policy(t.Context(), v, at)
	must(t, err)
	return string(limitsyaml.Format(p))
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if want, missing := strings.CutPrefix(part, "!"); missing == strings.Contains(text, want) {
			t.Errorf("%q is missing: %t, in\n%s", want, !missing, text)
		}
	}
}

func TestSetKeepsWhatIsNotGiven(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	made, err := s.Set(t.Context(), anna, "payments/*", "tenant", map[string]string{"limit": "40"})
	must(t, err)
	if made.Version.Number != 2 || made.Version.By != "anna" || made.Version.Change != "set payments/* tenant limit=40" ||
		textOf(made.Differences) != "payments/* tenant - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5} + {name: tenant, algorithm: token-bucket, limit: 40, per: 1s, burst: 5}\n" {
		t.Errorf("%+v", made)
	}
	// One that only "*" has is the scope's own from then on, and keeps what it inherits.
	made, err = s.Set(t.Context(), bert, "payments/acme", "tenant", map[string]string{"burst": "9"})
	must(t, err)
	if textOf(made.Differences) != "payments/acme tenant + {name: tenant, algorithm: token-bucket, limit: 40, per: 1s, burst: 9}\n" {
		t.Errorf("%+v", made)
	}
	// A rule that is new, in a place that is.
	must(t, set(s, bert, "search/*/images", "plan", "algorithm=fixed-window", "limit=7", "per=1h"))
	has(t, s.nowSays(t), "limit: 200", "limit: 40, per: 1s, burst: 5", "limit: 40, per: 1s, burst: 9", "images:", "limit: 7, per: 1h")
	v, err := s.Current(t.Context())
	if err != nil || len(v.Overrides) != 3 || v.Overrides[1].CreatedBy != "bert" && v.Overrides[0].CreatedBy != "bert" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	s.refuses(t, map[string]func() error{
		"the least is 0":            func() error { return set(s, anna, "payments", "account", "limit=-1") },
		"is not the name of a rule": func() error { return set(s, anna, "payments", "owner:", "algorithm=concurrency", "limit=1") },
		"algorithm is missing":      func() error { return set(s, anna, "payments", "new", "limit=1") },
		"is not a field of a rule":  func() error { return set(s, anna, "payments", "account", "bursts=1") },
		`payments//x is a place of the tier "x", and the limits have no tiers below "payments"; write them beside its scopes`: func() error { return set(s, anna, "payments//x", "account", "algorithm=concurrency", "limit=1") },
		"scope \"\": is empty":           func() error { return set(s, anna, "", "account", "limit=1") },
		`and not "\x1b[2J"`:              func() error { return set(s, Edit{By: "\x1b[2J"}, "payments", "account", "limit=1") },
		"needs an author":                func() error { return set(s, Edit{By: " "}, "payments", "account", "limit=1") },
		"meant for version 7":            func() error { return set(s, Edit{By: "anna", IfVersion: 7}, "payments", "account", "limit=1") },
		"payments has no rule \"x\"":     func() error { return second(s.Remove(t.Context(), anna, "payments", "x")) },
		"and inherits {name: tenant, al": func() error { return second(s.Remove(t.Context(), anna, "payments/acme", "tenant")) },
		"it is so already":               func() error { return second(s.Unset(t.Context(), anna, "payments", "account")) },
		"version 9 of the limits":        func() error { return second(s.Rollback(t.Context(), anna, 9)) },
	})
}

// refuses wants each change to fail with the text that it stands under, and none to change anything.
func (s *Store) refuses(t *testing.T, changes map[string]func() error) {
	t.Helper()
	before, err := s.Current(t.Context())
	must(t, err)
	for want, change := range changes {
		if err := change(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if v, err := s.Current(t.Context()); err != nil || v.Number != before.Number {
		t.Errorf("a refused change changed something: %+v, %v", v, err)
	}
}

// set is Set with its fields as a command line has them.
func set(s *Store, e Edit, scope, rule string, fields ...string) error {
	m := map[string]string{}
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		m[key] = value
	}
	return second(s.Set(context.Background(), e, scope, rule, m))
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveAndUnset(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	must(t, set(s, anna, "payments/*", "tenant", "limit=40"), set(s, anna, "payments/acme", "tenant", "limit=100"))
	must(t, second(s.Remove(ctx, anna, "payments/*", "tenant")))
	has(t, s.nowSays(t), "!limit: 40", "!limit: 20,", "limit: 100")
	must(t, second(s.Unset(ctx, bert, "payments/*", "tenant")))
	has(t, s.nowSays(t), "limit: 20,", "limit: 100")
	must(t, second(s.Unset(ctx, bert, "payments/acme", "")))
	if got := s.nowSays(t); got != string(limitsyaml.Format(policyOf(t, file))) {
		t.Error(got)
	}
}

func TestForATime(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
	must(t, set(s, Edit{By: "bert", For: time.Hour}, "payments/acme", "tenant", "limit=500"))
	has(t, s.nowSays(t), "limit: 500", "!limit: 100")
	v, err := s.Current(t.Context())
	must(t, err)
	p, next, err := s.Policy(t.Context(), v, v.At.Add(time.Hour-1))
	must(t, err)
	has(t, string(limitsyaml.Format(p)), "limit: 500")
	if !next.Equal(v.At.Add(time.Hour)) {
		t.Errorf("it changes at %v", next)
	}
	p, next, err = s.Policy(t.Context(), v, v.At.Add(time.Hour))
	must(t, err)
	has(t, string(limitsyaml.Format(p)), "!limit: 500", "limit: 100") // what was there before it
	if !next.IsZero() {
		t.Errorf("then at %v", next)
	}
	// What is set for good does not rest on what ends, and comes when that has.
	must(t, set(s, anna, "payments/acme", "tenant", "burst=2"))
	has(t, s.nowSays(t), "limit: 500, per: 1s, burst: 5")
	v, err = s.Current(t.Context())
	must(t, err)
	p, _, err = s.Policy(t.Context(), v, v.At.Add(2*time.Hour))
	must(t, err)
	has(t, string(limitsyaml.Format(p)), "limit: 100, per: 1s, burst: 2")
	for _, lasts := range []time.Duration{-time.Second, Notice} {
		if err := set(s, Edit{By: "bert", For: lasts}, "payments/acme", "tenant", "limit=9"); err == nil {
			t.Errorf("for %s was taken", lasts)
		}
	}
}

// A change that says what is so already makes no version, and removing what was only set leaves nothing behind.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	if err := set(s, anna, "payments", "account", "limit=200"); !errors.Is(err, ErrUnchanged) {
		t.Errorf("%v", err)
	}
	must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
	must(t, second(s.Remove(t.Context(), anna, "payments/acme", "tenant")))
	v, err := s.Current(t.Context())
	if err != nil || len(v.Overrides) != 0 {
		t.Errorf("%+v, %v", v.Overrides, err)
	}
	// One connection is enough, whatever there is to do.
	options := *rdb.Options()
	options.PoolSize, options.PoolTimeout = 1, time.Second
	narrow := redis.NewClient(&options)
	t.Cleanup(func() { _ = narrow.Close() })
	must(t, set(s.with(narrow), anna, "payments", "account", "limit=7"))
}

func TestImportAndRollback(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
	other := policyOf(t, "limits:\n  payments: {rules: [{name: account, algorithm: sliding-window, limit: 50, per: 1s}]}\n  mail: {rules: [{name: day, algorithm: fixed-window, limit: 9, per: 24h}]}\n")
	must(t, second(s.Import(ctx, bert, other, "other.yaml", false)))
	has(t, s.nowSays(t), "limit: 50", "limit: 9", "limit: 100", "limit: 20")
	if _, err := s.Import(ctx, bert, other, "other.yaml", false); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	must(t, second(s.Import(ctx, bert, other, "other.yaml", true)))
	if got := s.nowSays(t); got != string(limitsyaml.Format(other)) {
		t.Errorf("replaced:\n%s", got)
	}
	// A worker's file does not count any more, until it is unset.
	published, _, err := s.PublishFile(ctx, "worker one", policyOf(t, strings.Replace(file, "200", "201", 1)), false)
	if !published || err != nil || s.nowSays(t) != string(limitsyaml.Format(other)) {
		t.Errorf("%t, %v", published, err)
	}
	must(t, second(s.Rollback(ctx, anna, 2)))
	has(t, s.nowSays(t), "limit: 200", "limit: 100", "!limit: 9") // version 2 had the file before
	must(t, second(s.Unset(ctx, anna, "", "")))
	has(t, s.nowSays(t), "limit: 201", "!limit: 100")
	var changes []string
	for i, v := range historyOf(t, s) {
		if v.Number != int64(i+1) || v.At.IsZero() || v.InForce.Sub(v.At) != Notice {
			t.Errorf("%+v", v)
		}
		changes = append(changes, v.By+": "+v.Change)
	}
	want := []string{
		"worker one: publish a limits file", "anna: set payments/acme tenant limit=100", "bert: import other.yaml",
		"bert: import -replace other.yaml", "worker one: publish a limits file", "anna: rollback 2", "anna: unset everything",
	}
	if !slices.Equal(changes, want) {
		t.Errorf("%q", changes)
	}
}

// docs/limits.md: "A worker that starts publishes its file if Redis has never had that file, or if no worker runs; a file that has changed
// while its worker ran is published in any case."
func TestFileIsPublished(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	older, newer := policyOf(t, file), policyOf(t, newerFile)
	publish := func(p *policy.Policy, changed, want bool) {
		t.Helper()
		published, v, err := s.PublishFile(t.Context(), "worker two", p, changed)
		if err != nil || published != want {
			t.Errorf("published %t, %v; want %t", published, err, want)
		}
		if now, err := s.Current(t.Context()); err != nil || now.Number != v.Number {
			t.Errorf("version %d, %v; published is %d", now.Number, err, v.Number)
		}
	}
	worker := newAnnouncer(s, Process{Worker: true})
	worker.renew(t.Context(), 1)
	publish(older, false, false)
	publish(newer, false, true)
	publish(older, false, false) // an older worker starts again
	publish(newer, true, false)  // and gets the newer file late
	has(t, s.nowSays(t), "limit: 30")
	publish(older, true, true) // the file of a running worker is put back
	publish(newer, false, false)
	has(t, s.nowSays(t), "limit: 20")
	worker.leave(t.Context())
	publish(newer, false, true) // all workers were stopped
	rdb.Del(t.Context(), s.key)
	worker.renew(t.Context(), 1)
	publish(older, false, true)
}

// Workers that start at once with one file and an empty Redis make one version.
func TestFileIsPublishedOnce(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	var all sync.WaitGroup
	var count atomic.Int64
	for range 8 {
		all.Go(func() {
			published, v, err := s.PublishFile(t.Context(), "worker", policyOf(t, file), false)
			if err != nil || v.Number != 1 || !v.HasFile(policyOf(t, file)) {
				t.Errorf("%+v, %v", v, err)
			}
			if published {
				count.Add(1)
			}
		})
	}
	all.Wait()
	if count.Load() != 1 {
		t.Errorf("published %d times", count.Load())
	}
}

// A change that is overtaken by another is made to the version of that one, unless it was meant for the one before.
func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]Edit{"any version": anna, "a certain version": {By: "anna", IfVersion: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rdb := withFile(t)
			own := redis.NewClient(rdb.Options())
			t.Cleanup(func() { _ = own.Close() })
			var once sync.Once
			own.AddHook(before(func(together bool, _ ...redis.Cmder) error {
				if together { // what changes the limits
					once.Do(func() { must(t, set(s, bert, "payments", "account", "limit=7")) })
				}
				return nil
			}))
			made, err := s.with(own).Set(t.Context(), edit, "payments", "account", map[string]string{"per": "2s"})
			if edit.IfVersion > 0 {
				if !errors.As(err, new(*ConflictError)) || !strings.Contains(err.Error(), `"set payments account limit=7" by "bert"`) {
					t.Error(err)
				}
				has(t, s.nowSays(t), "limit: 7, per: 1s")
				return
			}
			if must(t, err); made.Before == nil || made.Before.UpdatedBy != "bert" {
				t.Errorf("%+v", made.Before)
			}
			has(t, s.nowSays(t), "limit: 7, per: 2s")
		})
	}
}

// with is the store as another client has it.
func (s *Store) with(rdb redis.UniversalClient) *Store {
	return &Store{rdb: rdb, key: s.key, processes: s.processes}
}

// before is a hook that is called before each command that goes alone, with together false, and before each pipeline and
// each transaction. It may refuse them.
type before func(together bool, cmds ...redis.Cmder) error

func (before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := b(false, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (b before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := b(true, cmds...); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		field, text, want string
	}{
		"a version that is no number": {markField, "x", `its version is "x"`},
		"a version that is not there": {markField, "5", "version 5 of the limits in Redis: it is not there"},
		"no JSON":                     {"v:1", "{", "version 1 of the limits in Redis: it is not understood"},
		"a field that is unknown":     {"v:1", `{"version":1,"later":true}`, `unknown field "later"`},
		"a rule that is unknown":      {"v:1", `{"version":1,"overrides":[{"scope":"p","name":"r","text":"{name: r, algorithm: later, limit: 1}"}]}`, "rule r of p:1:22: algorithm is \"later\""},
		"no text":                     {"v:1", `{"version":1,"file":{"sum":"ab"}}`, "its text is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rdb := withFile(t)
			rdb.HSet(t.Context(), s.key, c.field, c.text)
			v, err := s.Current(t.Context())
			if err == nil {
				_, _, err = s.Policy(t.Context(), v, time.Now())
			}
			if !errors.As(err, new(*DamagedError)) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if err := set(s, anna, "payments", "account", "limit=1"); !errors.As(err, new(*DamagedError)) {
				t.Errorf("changed: %v", err)
			}
		})
	}
}

func TestNothingThere(t *testing.T) {
	t.Parallel()
	s, rdb := newStore(t)
	if _, err := s.Current(t.Context()); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	must(t, set(s, anna, "p/*", "r", "algorithm=concurrency", "limit=1")) // without any file
	has(t, s.nowSays(t), "limit: 1")
	_ = rdb.Close()
	_, err := s.Current(t.Context())
	if !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
	if err := set(s, anna, "p/*", "r", "limit=1"); !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
}

// docs/keys.md: the limits stay for 366 days after the last change. Of the history the last 100 versions are kept, fewer if they are large, and
// the texts that they need.
func TestHistoryEnds(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	other := "limits: {p: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"
	must(t, second(s.Import(t.Context(), anna, policyOf(t, other), "other.yaml", true)), second(s.Unset(t.Context(), anna, "", "")))
	for i := range Kept + 2 {
		must(t, set(s, anna, "payments", "account", fmt.Sprintf("limit=%d", i)))
	}
	if history := historyOf(t, s); len(history) != Kept || history[0].Number != 6 {
		t.Errorf("%d kept, from %d", len(history), history[0].Number)
	}
	has(t, s.nowSays(t), fmt.Sprintf("limit: %d,", Kept+1))
	if n := rdb.HLen(t.Context(), s.key).Val(); n != Kept+2 { // the mark and one file
		t.Errorf("%d fields", n)
	}
	if ttl := rdb.PTTL(t.Context(), s.key).Val(); ttl > keptFor || ttl < keptFor-time.Hour {
		t.Errorf("they end in %s", ttl)
	}
	for size, want := range map[int]int64{1: Kept, keptBytes / 10: 10, keptBytes: 2} {
		if got := kept(size); got != want {
			t.Errorf("of versions of %d bytes %d are kept, want %d", size, got, want)
		}
	}
}
