package usage

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must

// onAll runs a test on a real Redis, on miniredis and on a cluster, each under a prefix of its own.
func onAll(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient, prefix string)) {
	t.Helper()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"Redis": redistest.Client(t), "miniredis": mini, "a cluster": redistest.Cluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, rdb, redistest.Prefix(t))
		})
	}
}

func newRecorder(t testing.TB, rdb redis.UniversalClient, prefix, app string) *Recorder {
	t.Helper()
	r, err := New(rdb, Config{Prefix: prefix, App: app})
	must(t, err)
	r.timeout = redistest.Stretch(flushTimeout)
	return r
}

// inOneSlot makes all that it is called for flush in one slot of time.
func inOneSlot() func(*Recorder) {
	now := time.Now()
	return func(r *Recorder) { r.now = func() time.Time { return now } }
}

func flush(t testing.TB, r *Recorder) {
	t.Helper()
	must(t, r.Flush(t.Context()))
}

func read(t testing.TB, rdb redis.UniversalClient, prefix, scope string, since time.Duration) Report {
	t.Helper()
	report, err := Read(t.Context(), rdb, Config{Prefix: prefix}, scope, since)
	must(t, err)
	return report
}

// lines are the spenders of a report, without times.
func lines(r Report) (all []string) {
	for _, s := range r.Spenders {
		line := fmt.Sprintf("%s %s %s %d/%d", s.App, s.Queue, s.Type, s.Units, s.Tasks)
		if s.ByUnit != nil {
			line += fmt.Sprint(" ", s.ByUnit)
		}
		all = append(all, line)
	}
	return all
}

// What shadow rules would have done is recorded at the level at which they count, of two
// processes together; what was not answered is not.
func TestShadowed(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, rdb redis.UniversalClient, prefix string) {
		for _, r := range []*Recorder{newRecorder(t, rdb, prefix, "shop"), newRecorder(t, rdb, prefix, "billing")} {
			told := func(scope, rule string, outcome throttle.ShadowOutcome) {
				r.Shadowed(throttle.Shadowed{Outcome: outcome, RuleState: throttle.RuleState{
					RuleInfo: &throttle.RuleInfo{Scope: scope, Rule: rule}, Limited: outcome == throttle.ShadowDenied,
				}})
			}
			r.Spent("p/acme", By{Queue: "q", Type: "a"}, 5)
			for _, outcome := range []throttle.ShadowOutcome{throttle.ShadowAllowed, throttle.ShadowDenied, throttle.ShadowDropped, throttle.ShadowFailed} {
				told("p/acme", "a:b !", outcome)
			}
			told("p", "trial", throttle.ShadowDenied)
			told("q", "alone", throttle.ShadowAllowed)
			for n := range mostBy + 10 {
				told("many", fmt.Sprint(n), throttle.ShadowAllowed)
			}
			flush(t, r)
		}
		for scope, want := range map[string][]Shadow{
			"p/acme": {{"a:b !", 4, 2}}, "p": {{"trial", 2, 2}}, "q": {{"alone", 2, 0}}, "p/other": nil,
		} {
			report := read(t, rdb, prefix, scope, time.Hour)
			if !slices.Equal(report.Shadows, want) {
				t.Errorf("%s: got %v, want %v", scope, report.Shadows, want)
			}
			if scope == "p/acme" && report.All != (Sum{10, 2}) {
				t.Errorf("%+v was spent", report.All)
			}
		}
		if n := len(read(t, rdb, prefix, "many", time.Hour).Shadows); n != mostBy {
			t.Errorf("%d rules of one scope", n)
		}
	})
}

// "Which applications, queues and task types spent from it lately, how many units in how many tasks … What is spent from a scope
// counts at every level of its path", two processes add up, and "requests and each other unit are counted apart".
func TestWhoSpent(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, rdb redis.UniversalClient, prefix string) {
		shop, billing := newRecorder(t, rdb, prefix, "shop"), newRecorder(t, rdb, prefix, "billing")
		began := time.Now().Truncate(time.Second)
		shop.SpentCosts("p/acme/refunds", By{Queue: "q", Type: "a"}, policy.Costs{"requests": 5, "tokens": 100, "rows": 0})
		shop.Spent("p/acme/refunds", By{Queue: "q", Type: "a"}, 0)
		shop.SpentCosts("p/acme", By{Queue: "q", Type: "b"}, policy.Costs{"requests": 0, "rows": 7})
		shop.Spent("p/ace", By{App: "other", Queue: "low", Type: "a"}, 2)
		billing.Spent("p/acme/refunds", By{Queue: "q", Type: "a"}, 7)
		billing.Spent("other", By{Queue: "q", Type: "a"}, 100)
		flush(t, shop)
		shop.SpentCosts("p/acme", By{Queue: "q", Type: "a"}, policy.Costs{"requests": 2, "tokens": 1})
		flush(t, shop)
		flush(t, billing)
		for scope, want := range map[string][]string{
			"p":              {"shop q a 8/3 map[tokens:101]", "billing q a 7/1", "other low a 2/1", "shop q b 0/1 map[rows:7]"},
			"p/acme":         {"shop q a 8/3 map[tokens:101]", "billing q a 7/1", "shop q b 0/1 map[rows:7]"},
			"p/acme/refunds": {"billing q a 7/1", "shop q a 6/2 map[tokens:100]"},
			"p/ace":          {"other low a 2/1"},
			"other":          {"billing q a 100/1"},
			"p/ac":           nil,
		} {
			for since, slot := range map[time.Duration]time.Duration{
				time.Minute: 5 * time.Minute, time.Hour: 5 * time.Minute, 2 * time.Hour: 2 * time.Hour, day: 2 * time.Hour, day + 1: day, Longest: day,
			} {
				got := read(t, rdb, prefix, scope, since)
				if !slices.Equal(lines(got), want) || got.Other != (Sum{}) || got.Scope.String() != scope {
					t.Errorf("%s, %s: %q and others %+v, want %q", scope, since, lines(got), got.Other, want)
				}
				sum, units := Sum{}, map[string]int64{}
				for _, s := range got.Spenders {
					sum.add(s.Sum)
					for unit, n := range s.ByUnit {
						units[unit] += n
					}
					if s.Last.Before(began) || s.Last.After(time.Now()) {
						t.Errorf("%s: %+v, began at %s", scope, s, began)
					}
				}
				if before := got.To.Sub(got.From) - since; sum != got.All || !maps.Equal(units, got.ByUnit) || got.OtherByUnit != nil || before < 0 || before > slot {
					t.Errorf("%s, since %s: from %s to %s all are %+v, the spenders' %+v", scope, since, got.From, got.To, got.All, sum)
				}
			}
		}
		if n := shop.Lost() + billing.Lost(); n != 0 {
			t.Errorf("%d units are lost", n)
		}
	})
}

// "Two never become one", whatever characters names have, and none of a key ends its part of it. Of a longer name the first 128
// bytes count.
func TestNamesStayApart(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	names := []string{"", "a", "a/b", "a:b", "a%2Fb", "%", "{a}", "}", "!used", "*", "a b", "a\nb", "ü", "u\u0308", "\xff", "u", "n", "u:a//"}
	r := newRecorder(t, rdb, prefix, "app")
	want := map[By]int64{}
	for i, a := range names {
		b := names[(i+7)%len(names)]
		for _, by := range []By{{App: "x", Queue: a, Type: b, EnqueuedBy: names[(i+3)%len(names)]}, {App: "x" + a, Queue: b}} {
			if want[by] == 0 {
				want[by] = int64(i + 1)
				r.Spent("p", by, want[by])
			}
		}
	}
	long := strings.Repeat("x", 127)
	for _, end := range []string{"é", "ü", "y", "yz"} {
		r.Spent("p", By{App: "x", Type: long + end}, 100)
	}
	want[By{App: "x", Type: long}], want[By{App: "x", Type: long + "y"}] = 200, 200
	scopes := []string{"s/a/b", "s/a%2Fb", "s/a:b", "s/a!used:5m.0", "s/a", "s/{a}", "s/a b", "s/a*", "{s}", "s", "s/b"}
	for i, scope := range scopes {
		r.Spent(scope, By{Type: scope}, int64(i+1))
	}
	flush(t, r)
	got := map[By]int64{}
	for _, s := range read(t, rdb, prefix, "p", time.Minute).Spenders {
		got[s.By] = s.Units
	}
	if len(want) > mostBy || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i, scope := range scopes {
		own := read(t, rdb, prefix, scope, time.Minute)
		if !slices.ContainsFunc(own.Spenders, func(s Spender) bool { return s.Type == scope && s.Units == int64(i+1) }) {
			t.Errorf("%s: %q", scope, lines(own))
		}
		for _, s := range own.Spenders {
			if s.Type != scope && !strings.HasPrefix(s.Type, scope+"/") {
				t.Errorf("%s has what %s spent", scope, s.Type)
			}
		}
	}
	for _, key := range rdb.Keys(t.Context(), prefix+":*").Val() {
		_, tag, _ := strings.Cut(key, "{")
		tag, rest, _ := strings.Cut(tag, "}")
		if tag == "" || !strings.HasPrefix(key, prefix+":{") || strings.ContainsAny(rest, "{} *") || strings.Count(rest, "!") != 1 {
			t.Errorf("the key %q", key)
		}
	}
}

// keysOf returns the keys under a prefix, each of which must have a TTL.
func keysOf(t *testing.T, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	keys := rdb.Keys(t.Context(), prefix+":*").Val()
	for _, key := range keys {
		if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 32*day+spare || !strings.Contains(key, ":1d.") && ttl > 26*time.Hour+spare {
			t.Errorf("%s lives %s", key, ttl)
		}
	}
	return keys
}

// "A scope 40 combinations, those that spent most; the units of others count as "other"", and a process has no more of them in
// memory. "A slot keeps the 8 that were spent most, for the same 40 combinations", and "130 bytes for each unit, and for
// each unit of each who spends it".
func TestFloodOfTypes(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, rdb redis.UniversalClient, prefix string) {
		const flushes, types = 5, 200
		fixed := inOneSlot()
		for n := range flushes {
			r := newRecorder(t, rdb, prefix, "app")
			fixed(r)
			r.SpentCosts("p/x", By{Type: "most"}, policy.Costs{"requests": 1000, "tokens": 1_000_000})
			for i := range types {
				r.SpentCosts("p/x", By{Type: fmt.Sprint(n, " ", i)}, policy.Costs{"requests": 2, "tokens": 10, fmt.Sprint("u", n, "-", i%10): 3})
			}
			if got := r.current.accounts[place{scope: "p/x"}]; len(got.by) != mostBy || len(got.all.units) != mostKinds {
				t.Errorf("%d who spend and %d units in memory", len(got.by), len(got.all.units))
			}
			flush(t, r)
		}
		for _, key := range keysOf(t, rdb, prefix) {
			fields := rdb.HLen(t.Context(), key).Val()
			took := rdb.MemoryUsage(t.Context(), key, 0).Val() // which miniredis does not know
			switch {
			case !strings.Contains(key, "!used:"):
			case fields > mostFields+mostKinds*(1+mostBy):
				t.Errorf("%s has %d fields", key, fields)
			case took > 130*fields || took == 0 && strings.HasSuffix(t.Name(), "/Redis"):
				t.Errorf("%d fields take %d bytes", fields, took)
			}
		}
		for _, scope := range []string{"p", "p/x"} {
			got := read(t, rdb, prefix, scope, time.Hour)
			first := got.Spenders[0]
			if len(got.Spenders) != mostBy || first.Type != "most" || first.Sum != (Sum{1000 * flushes, flushes}) ||
				first.ByUnit["tokens"] != flushes*1_000_000 {
				t.Errorf("%s: %d spenders, first %+v", scope, len(got.Spenders), first)
			}
			all := Sum{flushes * (1000 + 2*types), flushes * (1 + types)}
			other := Sum{all.Units - 1000*flushes - 2*(mostBy-1), all.Tasks - flushes - (mostBy - 1)}
			if got.All != all || got.Other != other {
				t.Errorf("%s: all %+v, want %+v; others %+v, want %+v", scope, got.All, all, got.Other, other)
			}
			sum := got.OtherByUnit["tokens"]
			for _, s := range got.Spenders {
				sum += s.ByUnit["tokens"]
			}
			if len(got.ByUnit) != mostKinds || got.ByUnit["tokens"] != flushes*(1_000_000+10*types) || sum != got.ByUnit["tokens"] || got.OtherByUnit["tokens"] == 0 {
				t.Errorf("%s: %v; %d tokens of listed and others", scope, got.ByUnit, sum)
			}
		}
	})
}

// "A provider has at most 1000 scopes in each slot of time", and a process 1000 in
// memory; what others spend counts at the provider.
func TestFloodOfScopes(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	const flushes, scopes = 3, 1500
	for n := range flushes {
		r := newRecorder(t, rdb, prefix, "app")
		r.Spent("p/z/most", By{Type: "m"}, 50)
		for i := range scopes {
			r.Spent(fmt.Sprintf("p/%d %d", n, i), By{Type: "f"}, 1)
		}
		if got := len(r.current.accounts); got > mostAccounts+mostProviders || r.current.combos > mostInMemory {
			t.Errorf("%d scopes and %d combinations in memory", got, r.current.combos)
		}
		flush(t, r)
		if r.Lost() != 0 {
			t.Errorf("%d units are lost", r.Lost())
		}
		// A slot may begin during the test.
		keys := keysOf(t, rdb, prefix)
		slots := map[string]int{}
		for _, key := range keys {
			slots[key[strings.LastIndex(key, ":"):]]++
			if strings.Contains(key, "!scopes:") {
				if got := rdb.ZCard(t.Context(), key).Val(); got > mostScopes {
					t.Errorf("%s has %d scopes", key, got)
				}
			}
		}
		for slot, got := range slots {
			if got > mostScopes+1 {
				t.Errorf("%d keys of slot %s", got, slot)
			}
		}
	}
	for scope, want := range map[string][]string{
		"p":        {fmt.Sprintf("app  f %d/%d", flushes*scopes, flushes*scopes), "app  m 150/3"},
		"p/z/most": {"app  m 150/3"},
		"p/z":      {"app  m 150/3"},
	} {
		if got := lines(read(t, rdb, prefix, scope, time.Hour)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", scope, got, want)
		}
	}
}

// "100 in two hours", however many providers someone makes up.
func TestFloodOfProviders(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	r := newRecorder(t, rdb, prefix, "app")
	began := grains[1].start(time.Now())
	for n := range 3 {
		for i := range 2000 {
			r.Spent(fmt.Sprintf("%d-%d/x", n, i), By{}, 1)
		}
		if got := len(r.current.accounts); got > mostAccounts+mostProviders {
			t.Errorf("%d scopes in memory", got)
		}
		if err := r.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 100 providers in two hours") || len(err.Error()) > 200 {
			t.Errorf("got %v", err)
		}
	}
	slots := (grains[1].start(time.Now())-began)/7200 + 1 // one may begin during the test
	indexes := rdb.Keys(t.Context(), prefix+":*!scopes:2h.*").Val()
	if int64(len(indexes)) > mostProviders*slots || r.Lost() != int64(3*2000-len(indexes)) {
		t.Errorf("%d providers are recorded, and %d units lost", len(indexes), r.Lost())
	}
}

// What somebody else wrote into a hash is passed over, and what is no unit is told of nobody.
func TestReadForeign(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	r := newRecorder(t, rdb, prefix, "app")
	r.SpentCosts("p", By{Type: "t"}, policy.Costs{"requests": 3, "To:kens": 5, "tokens": 1})
	flush(t, r)
	for _, key := range rdb.Keys(t.Context(), prefix+":*!used:*").Val() {
		rdb.HSet(t.Context(), key, "u:a/b", 5, "n:app//t", "x", "t:app//t", "1", "z", 4, "u:app//t/", 7, "u:app//t/b/c", 7, "u:gone/q/t", 0,
			"+rows", "x", "+Rows", 5, "+tokens:a/b", 7, "+tokens:gone//t", 3, "+:app//t", 1, "+bytes:app//t", -4)
	}
	got := read(t, rdb, prefix, "p", time.Minute)
	if want := []string{"app  t 3/0 map[tokens:1]"}; !slices.Equal(lines(got), want) || got.All != (Sum{3, 1}) || got.Other != (Sum{0, 1}) ||
		!maps.Equal(got.ByUnit, map[string]int64{"tokens": 1}) || got.OtherByUnit != nil {
		t.Errorf("got %q, %+v", lines(got), got)
	}
}

// "300 at most with one who spends, and 150 for each more up to 40, with names of usual
// length", "500 for five minutes" of slots of 15 seconds, and "130 for each" scope.
func TestUsageMemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	memory := func(prefix, of string) (most int64) {
		t.Helper()
		for _, key := range rdb.Keys(t.Context(), prefix+":*"+of+"*").Val() {
			most = max(most, rdb.MemoryUsage(t.Context(), key, 0).Val())
		}
		return most
	}
	for _, n := range []int64{1, 3, 20, mostBy} {
		prefix := redistest.Prefix(t)
		r := newRecorder(t, rdb, prefix, "billing")
		for i := range n {
			r.Spent("payments/acme", By{Queue: "invoices", Type: fmt.Sprint("invoice:send", i)}, 1000)
		}
		flush(t, r)
		if got, most := memory(prefix, "acme!used:"), 300+150*(n-1); got == 0 || got > most {
			t.Errorf("%d who spend take %d bytes, want at most %d", n, got, most)
		}
	}
	prefix := redistest.Prefix(t)
	r := newRecorder(t, rdb, prefix, "billing")
	began := time.Unix(minutes.start(time.Now()), 0)
	for slot := range int(chunk / fine.every) {
		r.now = func() time.Time { return began.Add(time.Duration(slot) * fine.every) }
		r.SpentCosts("payments/acme", By{Type: "t"}, policy.Costs{"requests": 100_000})
		flush(t, r)
	}
	got := memory(prefix, "acme!spent:")
	if got < 200 || got > 500 {
		t.Errorf("five minutes of slots of 15 seconds take %d bytes", got)
	}
	prefix = redistest.Prefix(t)
	r = newRecorder(t, rdb, prefix, "billing")
	for i := range mostScopes - 1 {
		r.Spent(fmt.Sprint("payments/tenant", i), By{Type: "t"}, 1000)
	}
	flush(t, r)
	if got := memory(prefix, "!scopes:"); got == 0 || got > 130*mostScopes {
		t.Errorf("%d scopes take %d bytes", mostScopes, got)
	}
}

// "It needs … and nothing else", under its own prefix.
func TestUsageAccess(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Who uses it\n")
	_, rule, _ := strings.Cut(section, "It needs `")
	rule, _, _ = strings.Cut(rule, "`")
	commands, fixed := strings.Fields(rule), inOneSlot()
	if len(commands) == 0 {
		t.Fatal("docs/operations.md does not say what is needed")
	}
	use := func(rdb *redis.Client, prefix string) error {
		for n := range 2 {
			r := newRecorder(t, rdb, prefix, "app")
			fixed(r)
			for i := range mostBy {
				r.Spent("p {*}/x", By{Type: fmt.Sprint(n, i)}, 1)
			}
			for i := range mostScopes {
				r.Spent(fmt.Sprint("p {*}/", n, "-", i), By{}, 1)
			}
			if err := r.Flush(t.Context()); err != nil {
				return err
			}
		}
		now := time.Now()
		if _, err := Series(t.Context(), rdb, Config{Prefix: prefix}, "p {*}", now.Add(-day), now, day); err != nil {
			return err
		}
		_, err := Read(t.Context(), rdb, Config{Prefix: prefix}, "p {*}", time.Hour)
		return err
	}
	prefix := redistest.Prefix(t)
	if err := use(redistest.User(t, []string{prefix + ":*"}, commands...), prefix); err != nil {
		t.Errorf("with all of %q: %v", commands, err)
	}
	for i := range commands {
		prefix := redistest.Prefix(t)
		less := slices.Delete(slices.Clone(commands), i, i+1)
		if err := use(redistest.User(t, []string{prefix + ":*"}, less...), prefix); !redis.HasErrorPrefix(err, "NOPERM") {
			t.Errorf("without %s: %v", commands[i], err)
		}
	}
	if err := use(redistest.User(t, []string{prefix + ":{p%20%7B%2A%7D}*"}, commands...), prefix); err != nil {
		t.Errorf("with the provider's keys alone: %v", err)
	}
	if err := use(redistest.User(t, []string{"other:*"}, commands...), prefix); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("keys of others: %v", err)
	}
}
