package policystore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

const tieredFile = `
limits:
  payments:
    tiers: {gold: {rules: [{name: tenant, algorithm: sliding-window, limit: 100, per: 1s}]}, free: {}}
    scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 2, per: 1s}]}}
  mail: {rules: [{name: r, algorithm: concurrency, limit: 1}]}
`

// A version holds what it has changed of tiers, and no more; they are listed by scope, and an unknown tier is refused with what is meant.
func TestSetTiers(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	publish(t, s, tieredFile)
	listed := func(scope string) string {
		t.Helper()
		all := map[string]string{}
		for tier, err := range s.Tiers(t.Context(), scope) {
			must(t, err)
			all[tier.Scope] = tier.Tier
		}
		return fmt.Sprint(all)
	}
	made, err := s.SetTiers(t.Context(), anna, map[string]string{"payments/acme": "gold"})
	must(t, err)
	if v := made.Version; v.Change != "tier payments/acme gold" || len(made.Differences) != 0 || len(v.Tiers) != 1 || v.Tiers[0] != (Tier{"payments/acme", "gold", ""}) {
		t.Errorf("%+v", v)
	}
	made, err = s.SetTiers(t.Context(), bert, map[string]string{"payments/acme": "free", "payments/bob": "gold", "payments/acme/x": ""})
	must(t, err)
	if v := made.Version; v.Change != "tiers of 2 names, payments/acme first" || v.Tiers[0] != (Tier{"payments/acme", "free", "gold"}) {
		t.Errorf("%+v", v)
	}
	if got := listed(""); got != "map[payments/acme:free payments/bob:gold]" {
		t.Errorf("all: %s", got)
	}
	if got := listed("payments/bob") + listed("payments/bo") + listed("payments"); got != "map[payments/bob:gold]map[]map[payments/acme:free payments/bob:gold]" {
		t.Errorf("some: %s", got)
	}
	made, err = s.SetTiers(t.Context(), anna, map[string]string{"payments/acme": ""})
	must(t, err)
	if made.Version.Change != "tier payments/acme removed, was free" || listed("payments/acme") != "map[]" {
		t.Errorf("%+v, and %s", made.Version, listed("payments/acme"))
	}
	if _, err := s.Set(t.Context(), anna, "payments//gold", "tenant", map[string]string{"limit": "150"}); err != nil {
		t.Error(err)
	}
	v, err := s.Current(t.Context())
	must(t, err)
	if v.Tiers != nil || len(v.Overrides) != 1 || v.Overrides[0].Scope != "payments//gold" || !strings.Contains(v.Overrides[0].Text, "limit: 150") {
		t.Errorf("%+v", v)
	}
	if _, err = s.Rollback(t.Context(), anna, 1); err != nil || listed("") != "map[payments/bob:gold]" {
		t.Errorf("rolled back: %s, %v", listed(""), err)
	}
	for want, tiers := range map[string]map[string]string{
		`payments has no tier "golf"; did you mean gold?`:   {"payments/acme": "golf"},
		`the limits have no tiers below "mail"; write them`: {"mail/acme": "gold"},
		"tiers are of names below a provider":               {"payments": "gold"},
		`name 2 is "*"`:                                     {"payments/*": "gold"},
		"it is so already":                                  {"payments/bob": "gold"},
		"1001 tiers are too many at once":                   manyTiers(1001),
	} {
		if _, err := s.SetTiers(t.Context(), anna, tiers); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", want, err, want)
		}
	}
	_, err = s.SetTiers(t.Context(), Edit{By: "anna", DryRun: true}, map[string]string{"payments/x": "gold"})
	if must(t, err); listed("payments/x") != "map[]" {
		t.Error("a dry run has set a tier")
	}
	_, err = s.SetTiers(t.Context(), anna, manyTiers(1000))
	must(t, err)
}

func manyTiers(n int) map[string]string {
	tiers := map[string]string{}
	for i := range n {
		tiers[fmt.Sprint("payments/t", i)] = "gold"
	}
	return tiers
}

// "Processes that Follow the limits have it when the version is in force", also of several versions between two looks, and of a tier that
// came with them. What SetTiers sets goes before the next source, which counts again when that is removed.
func TestFollowersRenewTiers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		publish(t, s, tieredFile)
		rdb := redis.NewClient(redistest.MiniredisOptions(m))
		next := func(_ context.Context, name policy.Scope) (string, error) {
			return map[string]string{"payments/acme": "gold"}[name.String()], nil
		}
		l, err := throttle.New(rdb, policyOf(t, tieredFile), throttle.Config{TierOf: s.TierOr(next), TierTTL: time.Hour})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Follow(ctx, New(rdb, Config{}), l, FollowConfig{})
		}()
		defer func() { cancel(); <-done }()
		meets := func(want map[string]int64) {
			t.Helper()
			got := map[string]int64{}
			for name := range want {
				d, err := l.Peek(t.Context(), throttle.Request{Scope: "payments/" + name})
				must(t, err)
				got[name] = d.Rules[0].Limit
			}
			if !maps.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		}
		set := func(name, tier string) {
			t.Helper()
			_, err := s.SetTiers(t.Context(), anna, map[string]string{"payments/" + name: tier})
			must(t, err)
		}
		pass(3 * time.Second)
		meets(map[string]int64{"acme": 100, "bob": 2, "eve": 2})
		set("acme", "free")
		set("bob", "gold")
		set("eve", "gold")
		meets(map[string]int64{"acme": 100, "bob": 2, "eve": 2})
		pass(2 * time.Second)
		meets(map[string]int64{"acme": 2, "bob": 100, "eve": 100})
		set("acme", "")
		publish(t, s, strings.Replace(tieredFile, "free: {}", "top: {rules: [{name: tenant, algorithm: sliding-window, limit: 7, per: 1s}]}", 1))
		set("bob", "top")
		pass(2 * time.Second)
		meets(map[string]int64{"acme": 100, "bob": 7, "eve": 100})
	})
}

// TierOr fails as Redis does: the tier is not known then, and not none.
func TestTierOrFails(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	name, err := policy.ParseScope("payments/acme")
	must(t, err)
	s := New(rdb, Config{})
	_, err = s.TierOr(func(context.Context, policy.Scope) (string, error) { return "free", nil })(t.Context(), name)
	if !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := s.TierOr(nil)(t.Context(), name); !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
}
