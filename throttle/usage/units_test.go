package usage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// byUnit are the spenders of a report with their units.
func byUnit(r Report) (all []string) {
	for _, s := range r.Spenders {
		all = append(all, fmt.Sprintf("%s %s %d/%d %v", s.App, s.Type, s.Units, s.Tasks, s.ByUnit))
	}
	return all
}

// "Requests and each other unit are told apart", at every level, of two processes together,
// one of which costs no units; and where nothing does there is no key of them.
func TestUnitsApart(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{
		"Redis": redistest.Client(t), "miniredis": mini, "a cluster": redistest.Cluster(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := redistest.Prefix(t)
			shop, older := newRecorder(t, rdb, prefix, "shop"), newRecorder(t, rdb, prefix, "older")
			shop.SpentCosts("p/a/x", By{Type: "a"}, policy.Costs{"tokens": 100})
			shop.SpentCosts("p/a/x", By{Type: "a"}, policy.Costs{"requests": 2, "tokens": 50, "rows": 0})
			shop.SpentCosts("p/a", By{Type: "b"}, policy.Costs{"requests": 0, "rows": 7})
			older.Spent("p/a", By{Type: "a"}, 9)
			older.Spent("q", By{Type: "a"}, 9)
			flush(t, shop)
			shop.SpentCosts("p/a", By{Type: "a"}, policy.Costs{"tokens": 1})
			flush(t, shop)
			flush(t, older)
			for scope, want := range map[string]struct {
				spenders []string
				units    map[string]int64
			}{
				"p":     {[]string{"older a 9/1 map[]", "shop a 4/3 map[tokens:151]", "shop b 0/1 map[rows:7]"}, map[string]int64{"tokens": 151, "rows": 7}},
				"p/a":   {[]string{"older a 9/1 map[]", "shop a 4/3 map[tokens:151]", "shop b 0/1 map[rows:7]"}, map[string]int64{"tokens": 151, "rows": 7}},
				"p/a/x": {[]string{"shop a 3/2 map[tokens:150]"}, map[string]int64{"tokens": 150}},
				"q":     {[]string{"older a 9/1 map[]"}, nil},
			} {
				for _, since := range []time.Duration{time.Minute, Longest} {
					got := read(t, rdb, prefix, scope, since)
					if !slices.Equal(byUnit(got), want.spenders) || !maps.Equal(got.ByUnit, want.units) || got.OtherByUnit != nil {
						t.Errorf("%s: %q, all %v, others %v", scope, byUnit(got), got.ByUnit, got.OtherByUnit)
					}
				}
			}
			start := grains[1].start(time.Now())
			scope, err := policy.ParseScope("q")
			must(t, err)
			if n := rdb.Exists(t.Context(), grains[1].unitsKey(throttle.ScopeKey(prefix, scope), start)).Val(); n != 0 {
				t.Error("a scope without units has a key of them")
			}
		})
	}
}

// "A slot has 328 sums by unit; of more those of the 8 units of which most was spent", and
// "130 bytes for each unit, and for each unit of each who spends it".
func TestFloodOfUnits(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]*redis.Client{"Redis": redistest.Client(t), "miniredis": second(redistest.Miniredis(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := redistest.Prefix(t)
			fixed := inOneSlot()
			for n := range 5 {
				r := newRecorder(t, rdb, prefix, "app")
				fixed(r)
				r.SpentCosts("p/x", By{Type: "most"}, policy.Costs{"requests": 1000, "tokens": 1_000_000})
				for i := range 100 {
					r.SpentCosts("p/x", By{Type: fmt.Sprint(n, " ", i)}, policy.Costs{"tokens": 10, fmt.Sprint("u", n, "-", i%10): 3})
				}
				if got := r.current.accounts["p/x"].all.units; len(got) != mostKinds {
					t.Errorf("%d units in memory", len(got))
				}
				flush(t, r)
			}
			for _, key := range keysOf(t, rdb, prefix) {
				if !strings.Contains(key, "!units:") {
					continue
				}
				fields := rdb.HLen(t.Context(), key).Val()
				if fields > mostUnitFields {
					t.Errorf("%s has %d fields", key, fields)
				}
				if name == "Redis" {
					if took := rdb.MemoryUsage(t.Context(), key, 0).Val(); took == 0 || took > 130*fields {
						t.Errorf("%d fields take %d bytes", fields, took)
					}
				}
			}
			for _, scope := range []string{"p", "p/x"} {
				got := read(t, rdb, prefix, scope, time.Hour)
				if len(got.ByUnit) != mostKinds || got.ByUnit["tokens"] != 5*(1_000_000+1000) {
					t.Errorf("%s: %v", scope, got.ByUnit)
				}
				if first := got.Spenders[0]; first.Type != "most" || first.ByUnit["tokens"] != 5_000_000 {
					t.Errorf("%s: first is %+v", scope, first)
				}
				sum := got.OtherByUnit["tokens"]
				for _, s := range got.Spenders {
					sum += s.ByUnit["tokens"]
				}
				if sum != got.ByUnit["tokens"] || got.OtherByUnit["tokens"] == 0 {
					t.Errorf("%s: %d tokens of listed and others", scope, sum)
				}
			}
		})
	}
}

// "It … allocates nothing", by unit too.
func TestSpentCostsAllocatesNothing(t *testing.T) {
	r := newRecorder(t, redistest.Client(t), "hw", "app")
	by, costs := By{Queue: "q", Type: "t"}, policy.Costs{"requests": 2, "tokens": 100}
	r.SpentCosts("p/x", by, costs)
	if got := testing.AllocsPerRun(100, func() { r.SpentCosts("p/x", by, costs) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// What cannot have been spent is lost, and what is no unit is told of nobody.
func TestImpossibleUnits(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	r := newRecorder(t, rdb, prefix, "app")
	r.SpentCosts("p", By{}, policy.Costs{"tokens": -1})
	r.SpentCosts("p", By{}, policy.Costs{"requests": 3, "tokens": mostUnits + 1})
	if r.Lost() != 1+3 || len(r.current.accounts) != 0 {
		t.Errorf("%d are lost", r.Lost())
	}
	r.SpentCosts("p", By{Type: "t"}, policy.Costs{"To:kens": 5, "tokens": 1})
	flush(t, r)
	for _, key := range rdb.Keys(t.Context(), prefix+":*!units:*").Val() {
		rdb.HSet(t.Context(), key, "rows", "x", "Rows", 5, "tokens:a/b", 7, "tokens:gone//t", 3, ":app//t", 1, "bytes:app//t", -4)
	}
	got := read(t, rdb, prefix, "p", time.Minute)
	if want := []string{"app t 1/1 map[tokens:1]"}; !slices.Equal(byUnit(got), want) || !maps.Equal(got.ByUnit, map[string]int64{"tokens": 1}) || got.OtherByUnit != nil {
		t.Errorf("got %q, %v, others %v", byUnit(got), got.ByUnit, got.OtherByUnit)
	}
}
