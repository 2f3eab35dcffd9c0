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
		m.HSet("hw:limits", "v:3", `{"format":1,"version":3,"rules":[{"scope":"p","name":"r","rule":"{name: r, algorithm: later, limit: 1}"}]}`)
		m.HSet("hw:limits", "version", "3")
		pass(3 * time.Second)
		f.says("limit: 100")
		if f.bad != 1 || strings.Count(f.log.String(), "invalid limits in Redis") != 1 {
			t.Errorf("told %d times:\n%s", f.bad, f.log)
		}
		m.HSet("hw:limits", "v:4", strings.Replace(m.HGet("hw:limits", "v:2"), `"version":2`, `"version":4`, 1))
		m.HSet("hw:limits", "version", "4") // as a program writes it that knows more
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

// "Renewed every hour by who follows", whether a worker is there or not; where it may not be,
// that is told once, and tried each minute.
func TestFollowKeeps(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		rdb := redis.NewClient(redistest.MiniredisOptions(m))
		refused := &refusing{}
		rdb.AddHook(before(refused.meet))
		f := follows(t, rdb)
		stays := func(want time.Duration) {
			t.Helper()
			if ttl := m.TTL(s.key); ttl < want-time.Hour-time.Minute || ttl > want {
				t.Errorf("it stays for %s, want %s", ttl, want)
			}
		}
		pass(150 * time.Minute)
		stays(fileStays)
		met := refused.refuse(errors.New("READONLY"))
		if met > 4 {
			t.Errorf("it was renewed %d times", met)
		}
		pass(time.Hour)
		if n := refused.refuse(nil) - met; n < 25 || n > 61 || strings.Count(f.log.String(), "cannot renew the limits in Redis") != 1 {
			t.Errorf("tried %d times, told\n%s", n, f.log)
		}
		pass(2 * time.Minute)
		stays(fileStays)
		has(t, f.log.String(), "limits in Redis renewed again")
		must(t, set(s, anna, "payments/acme", "tenant", "limit=100"))
		m.SetTTL(s.key, time.Hour) // somebody who had read the version before was late
		pass(2 * time.Second)
		stays(changesStay)
	})
}

// refusing counts the calls of PEXPIRE of a client, and refuses them.
type refusing struct {
	mu  sync.Mutex
	met int
	by  error
}

// refuse has the command refused by an error, or no more; it returns how often it was met.
func (r *refusing) refuse(by error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by = by
	return r.met
}

func (r *refusing) meet(together bool, cmds ...redis.Cmder) error {
	if together || cmds[0].Name() != "pexpire" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.met++
	return r.by
}

// reply is an error that a server answered with.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// docs/operations.md: "Who only follows works without a word": it renews nothing, and says so once
// when nobody else has done it for long.
func TestFollowMayOnlyRead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		rdb := redis.NewClient(redistest.MiniredisOptions(m))
		tries := &refusing{}
		noPermission := reply("NOPERM this user has no permissions to access one of the keys used as arguments")
		tries.refuse(noPermission)
		rdb.AddHook(before(tries.meet))
		f := follows(t, rdb)
		pass(2 * time.Hour)
		if n := tries.refuse(noPermission); n > 3 || strings.Contains(f.log.String(), "WARN") {
			t.Errorf("tried %d times, told\n%s", n, f.log)
		}
		m.SetTTL(s.key, fileStays/2+time.Hour) // hours later
		pass(3 * time.Hour)
		if n := strings.Count(f.log.String(), "WARN"); n != 1 || !strings.Contains(f.log.String(), "expire soon") {
			t.Errorf("told %d times\n%s", n, f.log)
		}
		must(t, s.Keep(t.Context())) // somebody does it, and no more of it
		m.SetTTL(s.key, fileStays/2+2*time.Hour)
		pass(90 * time.Minute)
		if n := strings.Count(f.log.String(), "WARN"); n != 1 {
			t.Errorf("told %d times\n%s", n, f.log)
		}
		f.says("limit: 20,")
	})
}

var newerFile = strings.Replace(file, "limit: 20,", "limit: 30,", 1)

// Whether nobody has the newer file is seen only by one who looks all the time: what happened while Redis
// did not answer, or while the process stood still, happened to the others too.
func TestVacancyIsSeenWithoutGaps(t *testing.T) {
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		ctx, older, newer := t.Context(), policyOf(t, file), policyOf(t, newerFile)
		h, other := NewHolder(s, "worker one"), NewHolder(s, "worker two")
		renews := func(want Published) {
			t.Helper()
			became, _, again, err := h.Renew(ctx, older)
			if became != want || err != nil || again <= 0 || again > 15*time.Second {
				t.Errorf("%v, again in %s, %v; want %v", became, again, err, want)
			}
		}
		renews(FileStands)
		if became, _, err := other.Publish(ctx, newer, nil); became != FileNew || err != nil {
			t.Errorf("%v, %v", became, err)
		}
		renews(FileSuperseded)
		must(t, other.Release(ctx))
		renews(FileSuperseded)
		for range 3 {
			<-time.After(15 * time.Second)
			m.SetError("LOADING")
			if _, _, _, err := h.Renew(ctx, older); err == nil {
				t.Error("there is no Redis")
			}
			m.SetError("")
			<-time.After(15 * time.Second)
			renews(FileSuperseded)
		}
		for range 3 {
			<-time.After(time.Hour)
			renews(FileSuperseded)
		}
		<-time.After(15 * time.Second)
		renews(FileSuperseded)
		<-time.After(15 * time.Second)
		renews(FileAgain)
		<-time.After(15 * time.Second)
		renews(FileStands)
		v, err := s.Current(ctx)
		if err != nil || v.Number != 3 || !v.HasFile(older) || v.HasFile(newer) || v.By != "worker one" {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// On a real server: several processes with the older file see at once that nobody has the newer one, and
// one of them publishes it.
func TestHoldersTakeOverOnce(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	ctx, older := t.Context(), policyOf(t, file)
	newer := NewHolder(s, "worker one")
	if _, _, err := newer.Publish(ctx, policyOf(t, newerFile), nil); err != nil {
		t.Fatal(err)
	}
	if became, _, err := NewHolder(s, "worker two").Publish(ctx, older, nil); became != FileSuperseded || err != nil {
		t.Errorf("%v, %v", became, err)
	}
	if ttl := rdb.PTTL(ctx, s.filesKey()).Val(); ttl < time.Hour || ttl > 2*time.Hour {
		t.Errorf("the leases stay for %s", ttl)
	}
	must(t, newer.Release(ctx))
	results := make(chan Published, 5)
	for range cap(results) {
		go func() {
			became, _, err := NewHolder(s, "worker").Publish(ctx, older, nil)
			if err != nil {
				t.Error(err)
			}
			results <- became
		}()
	}
	again := 0
	for range cap(results) {
		switch became := <-results; became {
		case FileAgain:
			again++
		case FileStands:
		default:
			t.Error(became)
		}
	}
	if v, err := s.Current(ctx); again != 1 || err != nil || v.Number != 3 || !v.HasFile(older) {
		t.Errorf("%d times, %+v, %v", again, v, err)
	}
}

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
	if ttl := rdb.PTTL(t.Context(), s.processes).Val(); ttl <= lease || ttl > 12*time.Minute {
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
