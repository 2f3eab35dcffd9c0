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
	source := New(p.rdb, Of("limits.yaml", rules), Config{Logger: log, Worker: true})
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

// docs/limits.md: "A worker that starts publishes its file if Redis has never had that file, or if no worker runs". So a rolling deploy
// changes the limits once, whatever starts again meanwhile.
func TestRollingDeploy(t *testing.T) {
	inFleet(t, func(f *fleet) {
		a, b, c := f.start(allows("1")), f.start(allows("1")), f.start(allows("1"))
		later(time.Minute)
		f.versions(1)
		a.stop()
		a = f.start(allows("2"))
		later(2 * time.Second)
		f.under("2", a, b, c) // at once, though two have the older one
		expect(f.t, c.out.String(), "level=WARN", "limits file was replaced by a newer one")
		expect(f.t, a.out.String(), "!replaced")

		b.crash() // and starts again before its deploy
		b = f.start(allows("1"))
		later(10 * time.Minute)
		expect(f.t, b.out.String(), "level=WARN", "limits file was replaced by a newer one")
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

// docs/limits.md: "To go back to an earlier file": a deploy of it changes nothing while workers run, a rollback does, and what was set
// live stands over either.
func TestRevert(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.start(allows("1")).stop()
		a, b := f.start(allows("2")), f.start(allows("2"))
		edit := policystore.Edit{By: "anna"}
		_, err := f.store.Pause(f.t.Context(), edit, "payments/acme")
		must(f.t, err)
		later(time.Hour)
		a.stop()
		a = f.start(allows("1"))
		later(time.Second)
		b.stop()
		b = f.start(allows("1"))
		later(10 * time.Minute)
		f.under("2", a, b)
		f.versions(3)
		_, err = f.store.Rollback(f.t.Context(), edit, 1)
		must(f.t, err)
		later(time.Second)
		f.under("1", a, b)
		b.stop()
		b = f.start(allows("1")) // the rollback stays
		later(time.Minute)
		f.under("1", a, b)
		f.versions(4)
		b.stop()
		b = f.start(allows("3"))
		later(time.Minute)
		f.under("1", a, b)
		expect(f.t, b.out.String(), "imported limits override the limits file; run worker limits unset")
		_, err = f.store.Unset(f.t.Context(), edit, "", "")
		must(f.t, err)
		later(time.Second)
		f.under("3", a, b)
	})
}

// If Redis is emptied, the newer file comes back, and an older one only when no process has the newer one.
func TestFileIsRestored(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.start(allows("1")).stop()
		newer := f.start(allows("2"))
		later(time.Second)
		older := f.start(allows("1"))
		later(time.Minute)
		f.m.FlushAll()
		later(5 * time.Minute)
		f.under("2", older, newer)
		f.versions(1)
		f.m.FlushAll() // and somebody is faster than the workers
		_, err := f.store.Set(f.t.Context(), policystore.Edit{By: "anna"}, "mail", "r", map[string]string{"algorithm": "concurrency", "limit": "1"})
		must(f.t, err)
		later(5 * time.Second)
		f.under("2", older, newer)
		expect(f.t, string(limitsyaml.Format(older.Policy())), "mail")
		f.versions(2)
		newer.crash()
		f.m.FlushAll()
		later(2 * time.Minute)
		f.under("1", older)
	})
}
