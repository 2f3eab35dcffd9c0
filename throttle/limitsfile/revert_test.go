package limitsfile

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// fleet is the processes of a deployment, in a bubble of fake time.
type fleet struct {
	t     *testing.T
	m     *miniredis.Miniredis
	store *policystore.Store
}

func inFleet(t *testing.T, test func(f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		test(&fleet{t: t, m: m, store: policystore.New(rdb, policystore.Config{})})
	})
}

// instance is one process of a fleet.
type instance struct {
	*throttle.Limiter
	out   *programs.Output
	rdb   *redis.Client
	end   context.CancelFunc
	ended sync.WaitGroup
	over  bool
}

// allows is a limits file of one rule.
func allows(limit string) string { return strings.Replace(oneRule, "200", limit, 1) }

// start starts a process with a limits file, as package worker does.
func (f *fleet) start(text string) *instance {
	f.t.Helper()
	rules, err := limitsyaml.Parse("limits.yaml", []byte(text))
	must(f.t, err)
	p := &instance{out: &programs.Output{}, rdb: redis.NewClient(redistest.MiniredisOptions(f.m))}
	log := slog.New(slog.NewTextHandler(p.out, nil))
	source := New(p.rdb, Of("limits.yaml", rules), Config{Logger: log})
	rules, err = source.Settle(f.t.Context())
	must(f.t, err)
	p.Limiter, err = throttle.New(p.rdb, rules, throttle.Config{})
	must(f.t, err)
	var ctx context.Context
	ctx, p.end = context.WithCancel(f.t.Context())
	p.ended.Go(func() { source.Follow(ctx, p.Limiter, log, nil) })
	f.t.Cleanup(p.stop)
	return p
}

// stop shuts a process down.
func (p *instance) stop() {
	p.end()
	p.ended.Wait()
	if !p.over {
		p.over = true
		_ = p.rdb.Close()
	}
}

// crash ends a process that says nothing any more.
func (p *instance) crash() {
	p.over = true
	_ = p.rdb.Close()
	p.stop()
}

// versions holds how many versions there were against a number: each flap makes one.
func (f *fleet) versions(want int64) policystore.Version {
	f.t.Helper()
	v, err := f.store.Current(f.t.Context())
	if err != nil || v.Number != want {
		f.t.Errorf("version %d, %v; want %d", v.Number, err, want)
	}
	return v
}

// under holds what is in force in processes against a limit.
func (f *fleet) under(limit string, all ...*instance) {
	f.t.Helper()
	for i, p := range all {
		if text := string(limitsyaml.Format(p.Policy())); !strings.Contains(text, "limit: "+limit+",") {
			f.t.Errorf("process %d runs under\n%s; want limit %s", i, text, limit)
		}
	}
}

// docs/limits.md: "Of the limits files that running processes have, the one that came into force last
// counts, and a new file comes into force at once."
func TestRollingDeploy(t *testing.T) {
	inFleet(t, func(f *fleet) {
		a, b, c := f.start(allows("1")), f.start(allows("1")), f.start(allows("1"))
		later(time.Minute)
		f.versions(1)
		a.stop()
		a = f.start(allows("2"))
		later(time.Second)
		f.under("2", a, b, c) // at once, though two have the older one
		later(time.Second)
		expect(f.t, c.out.String(), "level=WARN", "limits file superseded by a newer one; give this process the newer file")
		expect(f.t, a.out.String(), "!superseded")

		b.crash() // and comes back before its deploy
		b = f.start(allows("1"))
		later(10 * time.Minute)
		expect(f.t, b.out.String(), "level=WARN", "limits file superseded by a newer one")
		f.under("2", a, b, c)

		a.stop() // the only one with the newer file restarts
		later(20 * time.Second)
		a = f.start(allows("2"))
		a.crash() // and again, less orderly
		later(time.Minute)
		a = f.start(allows("2"))
		later(10 * time.Minute)
		f.under("2", a, b, c)

		b.stop()
		c.stop()
		b, c = f.start(allows("2")), f.start(allows("2"))
		later(10 * time.Minute)
		f.under("2", a, b, c)
		f.versions(2)
	})
}

// docs/guarantees.md: "git revert of a limits file and a deploy revert the limits".
func TestRevertByRollingDeploy(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.start(allows("1")).stop()
		a, b := f.start(allows("2")), f.start(allows("2"))
		later(time.Hour)
		a.stop()
		a = f.start(allows("1"))
		later(10 * time.Minute)
		f.under("2", a, b) // one still has it
		f.versions(2)
		b.stop()
		b = f.start(allows("1"))
		later(time.Second)
		f.under("1", a, b)
		v := f.versions(3)
		expect(f.t, v.Change, "again", "no process has the newer one any more")
		expect(f.t, b.out.String(), "limits file applies again", "!older")
		later(time.Hour)
		f.versions(3)
	})
}

var waysToEnd = map[string]func(*instance){"shut down": (*instance).stop, "crashed": (*instance).crash}

// The last process with the newer file is not replaced: those that run see that it has gone.
func TestRevertWhenTheLastHasGone(t *testing.T) {
	for name, end := range waysToEnd {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(f *fleet) {
				f.start(allows("1")).stop()
				b, c := f.start(allows("2")), f.start(allows("2"))
				a := f.start(allows("1"))
				later(time.Minute)
				end(b)
				later(5 * time.Minute)
				f.under("2", a, c)
				end(c)
				later(25 * time.Second) // it may only restart
				f.under("2", a)
				later(51 * time.Second) // 45 to the end of its lease, 30 to see that nobody comes, and 1 to follow
				f.under("1", a)
				f.versions(3)
				expect(f.t, a.out.String(), "superseded", "limits file applies again")
			})
		})
	}
}

// All processes are replaced at once, whether the others ended orderly or not.
func TestRevertByRestartOfAll(t *testing.T) {
	for name, end := range waysToEnd {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(f *fleet) {
				f.start(allows("1")).stop()
				a, b := f.start(allows("2")), f.start(allows("2"))
				later(time.Minute)
				end(a)
				end(b)
				a, b = f.start(allows("1")), f.start(allows("1"))
				later(time.Second)
				if name == "shut down" {
					f.under("1", a, b)
				} else { // within their leases
					f.under("2", a, b)
				}
				later(90 * time.Second)
				f.under("1", a, b)
				f.versions(3)
			})
		})
	}
}

// Of several older files the one that was in force last takes the place.
func TestRevertAmongSeveral(t *testing.T) {
	inFleet(t, func(f *fleet) {
		one, two, three := f.start(allows("1")), f.start(allows("2")), f.start(allows("3"))
		later(time.Minute)
		f.under("3", one, two, three)
		three.stop()
		later(2 * time.Minute)
		f.under("2", one, two)
		two.stop()
		later(2 * time.Minute)
		f.under("1", one)
		f.versions(5)
	})
}

// Redis does not answer for longer than leases last: who asks first afterwards proves nothing.
func TestOutageIsNoRevert(t *testing.T) {
	inFleet(t, func(f *fleet) {
		older := f.start(allows("1"))
		newer := f.start(allows("2"))
		older.stop()
		older = f.start(allows("1"))
		for _, down := range []time.Duration{time.Minute, time.Hour} {
			later(time.Minute)
			f.m.SetError("LOADING Redis is loading the dataset in memory")
			later(down)
			f.m.SetError("")
			older.stop() // a start is no proof either
			older = f.start(allows("1"))
			later(5 * time.Minute)
			f.under("2", older, newer)
			f.versions(2)
		}
	})
}

// What was set live stands over the file, whichever counts.
func TestRevertKeepsLiveChanges(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.start(allows("1")).stop()
		p := f.start(allows("2"))
		edit := policystore.Edit{By: "anna"}
		_, err := f.store.Set(f.t.Context(), edit, "payments", "account", map[string]string{"limit": "7"})
		must(f.t, err)
		_, err = f.store.Pause(f.t.Context(), edit, "payments/acme")
		must(f.t, err)
		p.stop()
		p = f.start(allows("1"))
		later(time.Minute)
		f.under("7", p)
		expect(f.t, string(limitsyaml.Format(p.Policy())), "paused: true")
		f.versions(5)
		_, err = f.store.Unset(f.t.Context(), edit, "payments", "account")
		must(f.t, err)
		later(time.Second)
		f.under("1", p)
	})
}

// Where Redis was emptied, an older file counts when no process with the newer one is there.
func TestOlderFileIsRestoredAtLast(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.start(allows("1")).stop()
		newer := f.start(allows("2"))
		older := f.start(allows("1"))
		later(time.Minute)
		f.m.FlushAll()
		later(5 * time.Minute)
		f.under("2", older, newer)
		f.versions(1)
		newer.crash()
		f.m.FlushAll()
		later(2 * time.Minute)
		f.under("1", older)
	})
}
