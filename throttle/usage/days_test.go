package usage

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// spentAt is what the model knows of one flush.
type spentAt struct {
	at    time.Time
	by    string
	sum   Sum
	words int64
}

// model is all that was spent from a scope, kept for ever and added up anew for each question.
type model []spentAt

// in adds up what was spent in a slot of time, by who spent.
func (m model) in(from time.Time, width time.Duration) (all Sum, by map[string]Sum, words int64) {
	by = map[string]Sum{}
	for _, one := range m {
		if one.at.Before(from) || !one.at.Before(from.Add(width)) {
			continue
		}
		all.add(one.sum)
		sum := by[one.by]
		sum.add(one.sum)
		by[one.by], words = sum, words+one.words
	}
	return all, by, words
}

// Days, hours and minutes are what a model that keeps everything says of them: over 40 days of two processes that spend and
// refund at random times, at every level of the path.
func TestDaysAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Miniredis(t)
				random := rand.New(rand.NewPCG(seed, 7))
				recorders := []*Recorder{newRecorder(t, rdb, "", "a"), newRecorder(t, rdb, "", "b")}
				models := map[string]model{}
				pass(time.Duration(random.Int64N(int64(3 * day))))
				for range 500 {
					pass(time.Duration(random.Int64N(int64(4 * time.Hour))))
					n := random.IntN(2)
					r, kind, scope := recorders[n], fmt.Sprint(random.IntN(3)), fmt.Sprint("p/", random.IntN(2))
					one := spentAt{at: time.Now(), by: r.app + " " + kind, sum: Sum{1 + random.Int64N(9), 1}, words: random.Int64N(50)}
					r.SpentCosts(scope, By{Type: kind}, policy.Costs{"requests": one.sum.Units, "words": one.words})
					if random.IntN(3) == 0 { // some of it is more, in the same slot
						one.sum.Units, one.words = one.sum.Units+2, one.words+5
						r.Settled(scope, By{Type: kind}, policy.Costs{"requests": 2, "words": 5})
					}
					flush(t, r)
					for _, level := range []string{"p", scope} {
						models[level] = append(models[level], one)
					}
					if random.IntN(10) == 0 {
						for level, m := range models {
							m.check(t, rdb, level, random)
						}
					}
				}
			})
		})
	}
}

func (m model) check(t *testing.T, rdb redis.UniversalClient, scope string, random *rand.Rand) {
	t.Helper()
	now, since := time.Now(), time.Duration(1+random.Int64N(int64(Longest)))
	reports, err := ReadDays(t.Context(), rdb, Config{}, scope, since)
	must(t, err)
	from := now.Add(-since).UTC().Truncate(day)
	for _, r := range reports {
		all, by, words := m.in(from, day)
		got := map[string]Sum{}
		for _, s := range r.Spenders {
			got[s.App+" "+s.Type] = s.Sum
		}
		if !r.From.Equal(from) || r.All != all || !maps.Equal(got, by) || r.ByUnit["words"] != words || r.Other != (Sum{}) {
			t.Fatalf("%s on %s: %+v by %v, want %+v by %v with %d words", scope, from, r, got, all, by, words)
		}
		if want := from.Add(day); r.To.After(now) || want.Before(now) && !r.To.Equal(want) {
			t.Fatalf("%s ends at %s", from, r.To)
		}
		from = from.Add(day)
	}
	if !from.After(now) || from.Add(-day).After(now) {
		t.Fatalf("the last of %d days begins at %s, and it is %s", len(reports), from.Add(-day), now)
	}
	for _, g := range grains {
		one := read(t, rdb, "", scope, time.Duration(1+random.Int64N(int64(g.reach))))
		if all, _, words := m.in(one.From, now.Sub(one.From)+1); one.All != all || one.ByUnit["words"] != words {
			t.Fatalf("%s from %s: %+v, want %+v with %d words", scope, one.From, one, all, words)
		}
		back := time.Duration(1 + random.Int64N(int64(g.reach)))
		from := now.Add(-back)
		to := from.Add(1 + time.Duration(random.Int64N(int64(back))))
		points, err := Series(t.Context(), rdb, Config{}, scope, from, to, g.every)
		must(t, err)
		at := from.UTC().Truncate(g.every)
		for _, p := range points {
			if all, _, _ := m.in(at, g.every); !p.At.Equal(at) || p.Sum != all {
				t.Fatalf("%s at %s by %s: %+v, want %+v", scope, at, g.every, p, all)
			}
			at = at.Add(g.every)
		}
		if at.Before(to) || !at.Add(-g.every).Before(to) {
			t.Fatalf("by %s the points end before %s, and to is %s", g.every, at, to)
		}
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	rdb, now := redistest.Client(t), time.Now()
	made := func(rdb redis.UniversalClient, app, prefix string) error {
		_, err := New(rdb, Config{App: app, Prefix: prefix})
		return err
	}
	series := func(rdb redis.UniversalClient, scope string, from, to, step time.Duration) error {
		_, err := Series(t.Context(), rdb, Config{}, scope, now.Add(from), now.Add(to), step)
		return err
	}
	_, tooFar := ReadDays(t.Context(), rdb, Config{}, "p", Longest+1)
	for want, err := range map[string]error{
		"usage: New needs a Redis client, got nil":           made(nil, "a", ""),
		"usage: the application's name has 0 bytes":          made(rdb, "", ""),
		"usage: the application's name has 129 bytes":        made(rdb, strings.Repeat("a", 129), ""),
		`usage: Config.Prefix "h{w"`:                         made(rdb, "a", "h{w"),
		`usage: Config.Prefix "h~w"`:                         made(rdb, "a", "h~w"),
		`usage: Config.Prefix "hü"`:                          made(rdb, "a", "hü"),
		"no slots of 1m0s are kept; use a step of 15s, 5m0s": series(rdb, "p", -time.Hour, 0, time.Minute),
		"slots of 5m0s are kept for 1h0m0s, and the series":  series(rdb, "p", -2*time.Hour, 0, 5*time.Minute),
		"there is nothing from ":                             series(rdb, "p", time.Hour, 2*time.Hour, 5*time.Minute),
		"stands for every name":                              series(rdb, "p/*", -time.Minute, 0, 5*time.Minute),
		"a Redis client is needed":                           series(nil, "p", -time.Minute, 0, 5*time.Minute),
		"cannot look back":                                   tooFar,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// Steady spending is as much in each slot of 15 seconds, whenever the processes flush; no unit and no task is lost, and the keys are
// gone soon.
func TestFine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		pass(7*time.Minute + 3*time.Second) // begin within a slot
		one, stopOne := running(t, rdb, Config{})
		pass(4 * time.Second) // the other flushes at other moments
		two, stopTwo := running(t, rdb, Config{})
		const seconds = 12 * 60
		for range seconds {
			one.SpentCosts("p/x", By{Type: "a"}, policy.Costs{"requests": 6})
			two.Spent("p/y", By{Type: "a"}, 1)
			two.Spent("p/y", By{Type: "b"}, 1)
			pass(time.Second)
		}
		stopOne()
		stopTwo()
		for scope, want := range map[string]Sum{"p": {8, 3}, "p/x": {6, 1}, "p/y": {2, 2}, "p/z": {}} {
			var all Sum
			points, err := Series(t.Context(), rdb, Config{}, scope, time.Now().Add(-15*time.Minute), time.Now(), fine.every)
			must(t, err)
			if n := len(points); n < 60 || n > 61 {
				t.Errorf("%s: %d points", scope, n)
			}
			for _, p := range points {
				all.add(p.Sum)
			}
			if all != (Sum{seconds * want.Units, seconds * want.Tasks}) {
				t.Errorf("%s: %+v in all", scope, all)
			}
			for _, p := range points[len(points)-40 : len(points)-2] { // the others begin or end within
				if units, tasks := p.Units-15*want.Units, p.Tasks-15*want.Tasks; units < -8 || units > 8 || tasks < -8 || tasks > 8 {
					t.Errorf("%s at %s: %+v, want 15 s of %+v", scope, p.At, p.Sum, want)
				}
			}
		}
		pass(chunk + fine.reach + spare)
		for _, key := range m.Keys() {
			if strings.Contains(key, "!spent:") {
				t.Errorf("%s is still there, for %s", key, m.TTL(key))
			}
		}
	})
}
