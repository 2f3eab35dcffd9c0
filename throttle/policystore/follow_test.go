package policystore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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
)

// followed is a process that follows a store, in a bubble of fake time.
type followed struct {
	*throttle.Limiter
	t    *testing.T
	log  *programs.Output
	none int
	bad  int
}

// follows begins to follow, and stops when the test ends.
func follows(t *testing.T, rdb redis.UniversalClient) *followed {
	t.Helper()
	l, err := throttle.New(rdb, policyOf(t, file), throttle.Config{})
	must(t, err)
	f := &followed{Limiter: l, t: t, log: &programs.Output{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, New(rdb, Config{}), l, FollowConfig{
			Logger: slog.New(slog.NewTextHandler(f.log, nil)), OnNone: func() { f.none++ }, OnRefused: func(error) { f.bad++ },
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func (f *followed) says(parts ...string) {
	f.t.Helper()
	has(f.t, string(limitsyaml.Format(f.Policy())), parts...)
}

func inBubble(t *testing.T, test func(t *testing.T, m *miniredis.Miniredis, s *Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		s := New(rdb, Config{})
		publish(t, s, file)
		test(t, m, s)
	})
}

func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

// README: "Every worker applies a change within a second", all at the same moment.
func TestAllChangeAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		var all []*followed
		for range 3 {
			all = append(all, follows(t, redis.NewClient(redistest.MiniredisOptions(m))))
			pass(130 * time.Millisecond) // they do not look at the same time
		}
		pass(time.Second)
		must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
		pass(Notice - 2*time.Millisecond)
		for _, f := range all {
			f.says("!limit: 100")
		}
		pass(4 * time.Millisecond)
		for _, f := range all {
			f.says("limit: 100")
			has(t, f.log.String(), "version=2", `change="set payments/acme tenant limit=100"`, "by=anna")
		}
	})
}

// A version that is not understood changes nothing, and is told once; the next is taken.
func TestKeepsWhatItUnderstands(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		f := follows(t, redis.NewClient(redistest.MiniredisOptions(m)))
		must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
		pass(time.Second)
		m.HSet("hw:limits", "v:3", `{"version":3,"overrides":[{"scope":"p","name":"r","text":"{name: r, algorithm: later, limit: 1}"}]}`)
		m.HSet("hw:limits", "version", "3")
		pass(3 * time.Second)
		f.says("limit: 100")
		if f.bad != 1 || strings.Count(f.log.String(), "invalid limits in Redis") != 1 {
			t.Errorf("told %d times:\n%s", f.bad, f.log)
		}
		m.HSet("hw:limits", "v:4", strings.Replace(m.HGet("hw:limits", "v:2"), `"version":2`, `"version":4`, 1))
		m.HSet("hw:limits", "version", "4") // as a later release writes it
		must(t, set(s, anna, "payments/acme", "tenant", "limit=300"))
		pass(time.Second)
		f.says("limit: 300")
	})
}

// Redis is down for a while, and empty when it is back: what is in force stays.
func TestKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		f := follows(t, redis.NewClient(redistest.MiniredisOptions(m)))
		must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
		pass(time.Second)
		m.SetError("LOADING")
		pass(5 * time.Second)
		f.says("limit: 100")
		if strings.Count(f.log.String(), "cannot read the limits in Redis") != 1 {
			t.Errorf("%s", f.log)
		}
		m.SetError("")
		m.FlushAll()
		pass(time.Second)
		f.says("limit: 100")
		has(t, f.log.String(), "limits in Redis readable again")
		if f.none == 0 {
			t.Error("not told that there is nothing")
		}
		publish(t, s, file) // version 1 again
		pass(time.Second)
		f.says("!limit: 100")
	})
}

// A process whose clock is off changes at the same moment nevertheless.
func TestChangesByTheServersClock(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		for _, off := range []time.Duration{time.Hour, -time.Hour} {
			m.SetTime(time.Now().Add(off))
			f := follows(t, redis.NewClient(redistest.MiniredisOptions(m)))
			must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
			m.SetTime(time.Now().Add(off))
			pass(2 * time.Second) // miniredis's clock stands; the process's offset to it is what it was at the look
			f.says("limit: 100")
			must(t, second(s.Unset(t.Context(), anna, "", "")))
			pass(2 * time.Second)
			f.says("!limit: 100")
		}
	})
}

// "While somebody changes something each fraction of a second, within a second and a half."
func TestManyChangesComeIntoForce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		f := follows(t, redis.NewClient(redistest.MiniredisOptions(m)))
		pass(time.Second)
		for i := range 50 {
			must(t, set(s, anna, "payments/acme", "tenant", fmt.Sprintf("limit=%d", 1000+i)))
			pass(200 * time.Millisecond)
			if i > 8 {
				f.says(fmt.Sprintf("limit: %d", 1000+i)[:len("limit: 10")], "!limit: 1000,")
			}
		}
		pass(1500 * time.Millisecond)
		f.says("limit: 1049")
	})
}

var newerFile = strings.Replace(file, "limit: 20,", "limit: 30,", 1)

// announced is a process that makes itself known until it is stopped.
func announced(ctx context.Context, what func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { what(ctx) })
	return func() { cancel(); done.Wait() }
}

func processes(t *testing.T, s *Store) []Process {
	t.Helper()
	list, err := s.Processes(t.Context())
	must(t, err)
	return list
}

// docs/keys.md: application, host, process id, and which version is in force there, or that it does not
// follow; for 45 seconds after it was killed, and no longer than it runs otherwise.
func TestProcesses(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	l, err := throttle.New(rdb, policyOf(t, file), throttle.Config{})
	must(t, err)
	follow := announced(t.Context(), func(ctx context.Context) { Follow(ctx, s, l, FollowConfig{App: "mail", Worker: true}) })
	fixed := announced(t.Context(), func(ctx context.Context) { Announce(ctx, s, Process{App: "billing", Version: 7, Follows: true}) })
	host, err := os.Hostname()
	must(t, err)
	known := func(want ...Process) {
		t.Helper()
		var got []Process
		redistest.WaitAsking(t, "the processes to be known", time.Minute, func() bool {
			got = processes(t, s)
			if len(got) != len(want) {
				return false
			}
			for i := range got {
				got[i].ID = ""
				want[i].Host, want[i].PID = host, os.Getpid()
				if got[i] != want[i] {
					return false
				}
			}
			return true
		})
	}
	known(Process{App: "billing"}, Process{App: "mail", Worker: true, Follows: true, Version: 1})
	must(t, set(s, anna, "payments", "account", "limit=5"))
	known(Process{App: "billing"}, Process{App: "mail", Worker: true, Follows: true, Version: 2})
	if ttl := rdb.PTTL(t.Context(), s.processes).Val(); ttl <= lease || ttl > 2*lease {
		t.Errorf("they stay for %s", ttl)
	}
	if n := rdb.ZCard(t.Context(), s.processes).Val(); n != 2 {
		t.Errorf("%d members of two processes", n)
	}
	follow()
	known(Process{App: "billing"})
	fixed()
	known()
}

// docs/keys.md: a process that follows renews the limits when it starts, and once a day.
func TestFollowerRenewsTheLimits(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"Redis": redistest.Client(t), "miniredis": mini} {
		s, f := New(rdb, Config{Prefix: redistest.Prefix(t)}), follower{}
		publish(t, s, file)
		f.store = s
		for i, renews := range []bool{true, false, true} {
			must(t, rdb.Expire(t.Context(), s.key, time.Minute).Err())
			f.renew(t.Context())
			if ttl := rdb.PTTL(t.Context(), s.key).Val(); (ttl > keptFor-time.Hour) != renews {
				t.Errorf("%s, %d: they end in %s", name, i, ttl)
			}
			if !renews {
				f.renewed = f.renewed.Add(-renewLimitsEvery)
			}
		}
	}
}

// A user that may not say so follows the limits all the same, and asks once an hour.
func TestProcessMayNotBeKnown(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	mute := New(server.User(t, []string{"hw:{*"}, "%R~hw:limits*", "hget", "time", "zadd", "pexpire", "zrem", "zremrangebyscore"), Config{})
	a := newAnnouncer(mute, Process{App: "mail"})
	a.renew(t.Context(), 1)
	if left := time.Until(a.due); a.member != "" || left < 59*time.Minute || left > time.Hour {
		t.Errorf("%q, again in %s", a.member, left)
	}
	if _, err := mute.Processes(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
		t.Error(err)
	}
}
