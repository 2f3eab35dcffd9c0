package usage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
			if err != nil {
				t.Fatal(err)
			}
			if n := rdb.Exists(t.Context(), grains[1].unitsKey(throttle.ScopeKey(prefix, scope), start)).Val(); n != 0 {
				t.Error("a scope without units has a key of them")
			}
		})
	}
}

// What was settled corrects what was spent, at every level and in whatever slot it is told;
// nobody is said to have spent less than nothing.
func TestSettledCorrects(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"Redis": redistest.Client(t), "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := redistest.Prefix(t)
			r := newRecorder(t, rdb, prefix, "shop")
			at := time.Unix(grains[1].start(time.Now()), 0).Add(-time.Second) // the end of a slot of each length
			r.now = func() time.Time { return at }
			r.SpentCosts("p/a", By{Type: "less"}, policy.Costs{"requests": 1, "tokens": 1500})
			r.SpentCosts("p/a", By{Type: "more"}, policy.Costs{"requests": 1, "tokens": 100})
			r.SpentCosts("p/b", By{Type: "none"}, policy.Costs{"requests": 3, "tokens": 40})
			flush(t, r)
			at = at.Add(2 * time.Second) // in the next one
			r.Settled("p/a", By{Type: "less"}, policy.Costs{"tokens": -1170})
			r.Settled("p/a", By{Type: "more"}, policy.Costs{"requests": 1, "tokens": 20, "rows": 5})
			r.Settled("p/b", By{Type: "none"}, policy.Costs{"requests": -2, "tokens": -40})
			r.Settled("p/b", By{Type: "none"}, policy.Costs{"tokens": -2 * mostUnits}) // nobody can have spent that
			flush(t, r)
			since := 3 * time.Hour
			for scope, want := range map[string]struct {
				spenders []string
				units    map[string]int64
			}{
				"p": {[]string{"shop more 2/1 map[rows:5 tokens:120]", "shop less 1/1 map[tokens:330]", "shop none 1/1 map[]"},
					map[string]int64{"tokens": 450, "rows": 5}},
				"p/b": {[]string{"shop none 1/1 map[]"}, nil},
			} {
				got := read(t, rdb, prefix, scope, since)
				if !slices.Equal(byUnit(got), want.spenders) || !maps.Equal(got.ByUnit, want.units) || got.OtherByUnit != nil || got.Other != (Sum{}) {
					t.Errorf("%s: %q, all %v, others %v %v", scope, byUnit(got), got.ByUnit, got.Other, got.OtherByUnit)
				}
			}
			// The last slot alone has less than nothing of some.
			r.Settled("q", By{}, policy.Costs{"requests": -1, "tokens": -7})
			flush(t, r)
			if got := read(t, rdb, prefix, "q", since); got.All != (Sum{}) || got.ByUnit != nil || len(got.Spenders) != 0 {
				t.Errorf("%+v", got)
			}
			if r.Lost() != 0 {
				t.Errorf("%d were lost", r.Lost())
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

// "6 more for the scope, 3 for each unit, and 3 for each unit of each who spent it."
func TestCommandsOfUnits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		c := &counted{}
		rdb.AddHook(c)
		r, stop := running(t, rdb, Config{})
		defer stop()
		for range 1000 {
			r.SpentCosts("p", By{Type: "a"}, policy.Costs{"tokens": 5, "rows": 1})
			r.SpentCosts("p", By{Type: "b"}, policy.Costs{"tokens": 5})
		}
		pass(flushEvery)
		const plain = 18 + 2 + 2*6 + 6
		if commands, pipelines := c.sent(); pipelines != 1 || commands != plain+6+2*3+3*3 {
			t.Errorf("%d commands in %d pipelines", commands, pipelines)
		}
	})
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
