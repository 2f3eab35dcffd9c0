package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/lua"
)

// tellMany tells n words of levels or rules below a name, many in a call.
func (b *bench) tellMany(verb, below string, n int, numbers [5]int64) {
	b.t.Helper()
	prefix := b.provider("p")
	const most = 500
	for at := 0; at < n; at += most {
		args := []any{b.now.Load()}
		for i := at; i < min(n, at+most); i++ {
			args = append(args, verb, fmt.Sprintf("%s/%d", below, i))
			for _, number := range numbers {
				args = append(args, number)
			}
		}
		noError(b.t, b.rdb.Eval(ctx, lua.ReportUpstream.Source(), []string{upstreamKey(prefix), scheduleKey(prefix), metaKey(prefix)}, args...).Err())
	}
}

// starts tells which scopes may start, against what is wanted.
func (b *bench) starts(want map[string]bool) {
	b.t.Helper()
	for scope, starts := range want {
		if d := b.decide(Request{Scope: scope}); d.Allowed != starts {
			b.t.Errorf("%s starts: %t", scope, d.Allowed)
		}
	}
}

// upstreamOf is how many pauses and corrections are kept, and what counts them.
func (b *bench) upstreamOf() (fields int, counts map[string]string) {
	b.t.Helper()
	counts = map[string]string{}
	for field, v := range b.rdb.HGetAll(ctx, upstreamKey(b.provider("p"))).Val() {
		switch field[0] {
		case '#':
			counts[field] = v
		case 'P', 'R':
			fields++
		}
	}
	return fields, counts
}

// "20,000 are kept below one name of the second level", and names of the third count for themselves up to twice as
// many: an API that pauses each path of one tenant pauses the whole of it beyond that, and nobody beside it. Any
// process hears of that.
func TestToldIsBounded(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(1000, 1000)), func(b *bench) {
		b.heed("p/b/x", turnedDown(time.Hour))
		const most = 40_000
		b.rdb.HSet(ctx, upstreamKey(b.provider("p")), "#/a", most-1) // those would take their time
		b.heed("p/a/last", turnedDown(time.Minute))
		b.starts(map[string]bool{"p/a": true, "p/a/new": true, "p/a/last": false})
		heeded := b.heed("p/a/new", turnedDown(time.Minute))
		b.starts(map[string]bool{"p/a": false, "p/a/new": false, "p/a/other": false, "p/b/x": false, "p/b": true, "p/b/y": true, "p/c/z": true})
		if told, err := b.UpstreamState(ctx, "p/a/new"); err != nil || len(told.Pauses) != 1 || told.Pauses[0].Scope != "p/a" || !told.Pauses[0].Until.Equal(heeded.Until) {
			b.t.Errorf("%+v, %v, after %+v", told, err, heeded)
		}
		if _, counts := b.upstreamOf(); counts["#/a"] != fmt.Sprint(most) || len(counts) != 2 {
			b.t.Errorf("%v", counts)
		}
		b.reports.mu.Lock()
		if _, known := b.reports.pauses[b.provider("p")+"/a"]; !known {
			b.t.Error("those beside the scope in this process do not hear of its pause")
		}
		b.reports.mu.Unlock()
		b.heed("p/a/last", turnedDown(2*time.Minute)) // it has its room
		b.pass(90 * sec)
		b.starts(map[string]bool{"p/a": true, "p/a/last": false})
	})
}

// What is over is forgotten little by little, with its counts.
func TestToldIsForgotten(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(1000, 1000)), func(b *bench) {
		b.heed("p/b/x", turnedDown(time.Hour))
		b.tellMany("pause", "/a", 3000, [5]int64{time.Minute.Microseconds()})
		b.tellMany("adopt", "/a/b/c:r", 10, [5]int64{5, sec.Microseconds(), time.Minute.Microseconds()})
		if n, counts := b.upstreamOf(); n != 3011 || counts["#/a"] != "3010" {
			b.t.Errorf("%d are kept, %v", n, counts)
		}
		b.pass(2 * time.Minute)
		for i := range 100 { // which look through all
			b.heed(fmt.Sprint("p/a/late", i), turnedDown(time.Minute))
		}
		if n, counts := b.upstreamOf(); n > 150 || counts["#/a"] != "100" {
			b.t.Errorf("%d are kept of what is over, %v", n, counts)
		}
		b.pass(2 * time.Hour)
		for range 20 {
			b.heed("p/c", turnedDown(time.Minute))
			b.pass(10 * sec)
		}
		if n, counts := b.upstreamOf(); n != 1 || len(counts) > 0 {
			b.t.Errorf("%d are kept when all of it is over, %v", n, counts)
		}
	})
}

// "2,000 of them below one of the third": one tenant of a region takes a tenth of its room, and ten that have told all they can
// take nobody else's.
func TestToldIsBoundedPerTenant(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(1000, 1000)), func(b *bench) {
		b.tellMany("pause", "/eu/a", 3000, [5]int64{time.Minute.Microseconds()})
		if n, counts := b.upstreamOf(); n != 2001 || counts["#/eu/a"] != "2000" || counts["#/eu"] != "2001" {
			b.t.Errorf("%d are kept, %v", n, counts)
		}
		b.starts(map[string]bool{"p/eu/a": false, "p/eu/a/new": false, "p/eu/b": true, "p/eu/b/x": true, "p/eu": true})
		b.rdb.HSet(ctx, upstreamKey(b.provider("p")), "#/eu", 20_000)
		b.heed("p/eu/b/x", turnedDown(time.Minute))
		b.starts(map[string]bool{"p/eu": true, "p/eu/c": true, "p/eu/b": false, "p/eu/b/x": false})
	})
}

// "What is over makes room at once": rests that count for a while, for the next to be told to be in vain,
// are no reason to pause a whole tenant.
func TestWhatIsOverMakesRoom(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(1000, 1000)), func(b *bench) {
		b.tellMany("rest", "/eu/a", 2000, [5]int64{sec.Microseconds(), time.Minute.Microseconds()})
		b.pass(5 * sec)
		for i := range 20 {
			b.heed(fmt.Sprint("p/eu/a/new", i), turnedDown(time.Minute))
		}
		b.starts(map[string]bool{"p/eu/a": true, "p/eu/a/new3": false, "p/eu/a/7": true})
	})
}

// A correction that there is no room for is told again ten seconds later, not with each answer, and not half an hour later.
func TestNoRoomIsToldAgain(t *testing.T) {
	t.Parallel()
	policy := parsedPolicy(t, `
limits:
  p:
    scopes: {"*": {scopes: {"*": {scopes: {"*": {rules: [{name: own, algorithm: sliding-window, limit: 20, per: 1m}]}}}}}}
`)
	onBoth(t, Config{}, policy, func(b *bench) {
		const scope = "p/eu/a/x"
		b.tellMany("pause", "/eu/a", 2000, [5]int64{time.Minute.Microseconds()})
		heed := func() bool {
			b.t.Helper()
			out, err := b.Report(ctx, scope, owns(4, time.Minute))
			noError(b.t, err)
			return out.Changed
		}
		if heed() {
			b.t.Error("there was room")
		}
		b.pass(2 * time.Minute)
		if heed() {
			b.t.Error("it was told again at once")
		}
		for its, one := range b.reports.words {
			one.told = one.told.Add(-roomApart)
			b.reports.words[its] = one
		}
		if !heed() || heed() {
			b.t.Error("it was not told again ten seconds later, once")
		}
	})
}
